"""How a call of torch.distributed reaches a process group that is written in Python, and what it was.

`operations` says which public function was called, from which line; `kernels` brings the calls of C++ code; `wait_for`
words what ranks wait for in them, `mismatch` calls that do not fit; `patched` puts one function in another's place.
Stands on `source` and `errors`; gloo and virtual take all of them.
"""
