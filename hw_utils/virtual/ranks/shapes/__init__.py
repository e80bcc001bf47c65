"""Tensors without values: an operation gives what it would give in shape, dtype and bytes, and computes nothing.

`shapes_mode` sees the operations: `computed_calls` give shapes, those of `data_dependent` ask for values (`item()`) and
are refused where there are none. `value_readers` is what asks for values where no operation is seen (`numpy()`). What
travels of them: `traffic/without_values`.
"""
