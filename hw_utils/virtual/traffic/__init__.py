"""What messages and collectives do in virtual time: matched, timed, copied, written down.

Stands on core, and on ranks for whose turn it is and which tensors have values. `engine` takes the matching and the
rows, `group` the collectives.
"""
