"""Processes that lock students' code in: walls by the kernel's means, a warm parent that forks, messages over a socket.

Stands on nothing of ours. `driving` and `course` take `Sandbox` and its tasks.
"""
