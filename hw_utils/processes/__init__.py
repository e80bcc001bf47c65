"""Ranks that are processes: started by fork or spawn, connected, spoken to in frames, brought to their end.

Stands on gloo and, for simulations that have a process of their own, on virtual. `launch` and `simulate` take `Gang`.
"""
