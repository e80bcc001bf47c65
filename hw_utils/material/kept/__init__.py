"""What an answer keeps: tensors by their path, and all else as texts; and hooks and references that watch it.

Stands on nothing of ours.
"""
