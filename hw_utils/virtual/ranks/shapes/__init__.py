"""Tensors without values: an operation gives what it would give in shape, dtype and bytes, and computes nothing.

`shapes_mode` sees the operations: `meta_results` has torch's own rule say what they give, once for each of
`meta_cache_keys`; those of `data_dependent` ask for values (`item()`) and are refused where there are none;
`views_and_writes` is what a schema says of memory. `value_readers` is what asks for values where no operation is seen
(`numpy()`). What travels of them: `traffic/without_values`.
"""
