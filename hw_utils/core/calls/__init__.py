"""How a call of torch.distributed reaches a process group that is written in Python, and what it was.

`public_calls` says which public function was called, from which line, and `tensor_layout` what its tensors are in
memory; `c10d_operations` brings the calls of C++ code; `wait_for` words what ranks wait for in them, `fitting_tensors`
asks whether one rank's tensors fit, `mismatch_text` words calls that do not fit each other, and `fingerprint` all
calls, where a program has them compared; `patched` puts one function in another's place.
Stands on source, errors, trace, hardware and collective_algorithms; mostly gloo and virtual take them.
"""
