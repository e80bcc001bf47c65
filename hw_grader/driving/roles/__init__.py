"""What runs inside the sandbox, a process each: the submission's cells, one check's answers, its driver, its judge.

A process becomes one of them by its name, see sandbox/jailed_process.py; the rest of driving talks to it over a socket.
"""
