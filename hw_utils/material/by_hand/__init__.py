"""Layers and a store whose memory and reading are in the open: slots that are filled and cleared, ranges that are read.

Stands on nothing of ours; lesson 07 works on it.
"""
