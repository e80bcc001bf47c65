"""Tensors without values: an operation gives what it would give in shape, dtype and bytes, and computes nothing.

`mode` sees the operations, `readers` what asks for values beside them, `messages` what travels.
"""
