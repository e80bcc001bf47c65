"""What a virtual rank has of its own as if it were a process: its carrier, clock, output, random state, globals.

Stands on core, scripts and traffic, which looks back for what its rank has. The rest of `virtual` takes everything.
"""
