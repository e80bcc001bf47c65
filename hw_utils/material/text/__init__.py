"""Texts as numbers: Alice's Adventures in Wonderland, and sentences of a small grammar whose entropy is known.

Stands on nothing of ours; `hw_utils.material.data` gives them out.
"""
