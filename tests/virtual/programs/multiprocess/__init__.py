"""Ranks that are processes of their own on the virtual clock."""
