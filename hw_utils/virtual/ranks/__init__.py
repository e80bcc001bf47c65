"""What a virtual rank has of its own as if it were a process: its carrier, clock, output, random state, globals.

Stands on core and scripts. The rest of `virtual` takes everything.
"""
