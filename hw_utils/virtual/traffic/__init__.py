"""What messages and collectives do in virtual time: matched, timed, copied, written down.

Stands on core. `engine` takes the matching and the rows, `group` the collectives.
"""
