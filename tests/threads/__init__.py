"""Ranks as threads: every way to fail, and orders made on purpose."""
