"""Checks of 7.5: layers whose weights are gathered for a pass and let go after it, at most two at once."""
