"""Processes that lock students' code in: walls by the kernel's means, a warm parent that forks, messages over a socket.

`sandbox` starts them, `bubblewrap` says in what, `lockdown` has the walls and `Limits` (memory, files, processes).
Stands on hw_utils.processes. The rooms above take `Sandbox` and its processes.
"""
