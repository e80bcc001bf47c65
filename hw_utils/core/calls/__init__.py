"""How a call of torch.distributed reaches a process group that is written in Python, and what it was.

`operations` says which public function was called, from which line; `kernels` brings the calls of C++ code. Stands on
nothing but `source`; gloo and virtual take both.
"""
