"""Ranks that are processes: started by fork or spawn, connected, spoken to in frames, brought to their end.

`worker_processes` is the kernel's side, which reads results and output, `rank_main` the other end, `supervisor` says
why a launch ended. Stands on gloo, scripts, core and, for simulations that have a process of their own, on virtual.
`launch` takes `SPARES`, processes that stand by, `simulate` takes `run_isolated`, a grader's sandbox the fork server.
"""
