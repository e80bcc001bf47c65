"""Tensors without values: an operation gives what it would give in shape, dtype and bytes, and computes nothing.

`mode` sees the operations and refuses those that ask for values (`item()`), `readers` what asks for values where no
operation is seen (`numpy()`), `messages` what travels.
"""
