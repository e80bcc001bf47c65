"""What a script written for torchrun finds in a rank, real or virtual: its environment, its `init_process_group`.

`script` makes a worker of a path and imports no torch; `joining` is torch.distributed's own call, in a rank;
`own_ranks` lets ranks play the processes that a script would start for them. Stands on core.
"""
