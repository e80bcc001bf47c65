"""Ranks with a virtual clock: one engine, one rank at a time, the same program gives the same times every time.

`simulation` is the run, `run_in_one_process` one attempt at it, `engine` its clocks and what counts as computation,
`ranks` what each rank has of its own, `traffic` what messages and collectives do, `device` virtual GPUs, `multiprocess`
ranks that need a process each. Stands on core and scripts. `simulate` and the fork server take `simulation`.
"""
