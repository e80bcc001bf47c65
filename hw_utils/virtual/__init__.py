"""Ranks with a virtual clock: one engine, one rank at a time, the same program gives the same times every time.

`cluster` is the run from first to last line, `ranks` what each rank has of its own, `traffic` what messages and
collectives do. Stands on core. `simulate` and the fork server take `cluster`.
"""
