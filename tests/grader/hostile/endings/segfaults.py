"""Reads address 0."""

# expects: crashed
import ctypes

ctypes.string_at(0)
