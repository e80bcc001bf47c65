"""What a script written for torchrun finds in a rank, real or virtual: its environment, its `init_process_group`.

`torchrun_script` makes a worker of a path and imports no torch; `process_group_setup` is torch.distributed's own call,
in a rank; `spawned_ranks` lets ranks play the processes that a script would start for them. Stands on core.
"""
