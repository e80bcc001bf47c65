"""Ranks that are processes of their own, on the same virtual clock.

For programs that change what a process has once: a module's global, the working directory, torch's default dtype.
`run_multiprocess` is the run of such ranks, `engine_server` has the engine and speaks for the ranks, one at a time;
`rank_main` is what runs in a rank's process, `engine_proxy` what asks the server there, `remote_work` what its calls
give back, `rank_threads` a rank of several threads, `devices` all of it for a rank with a virtual device. Every call
costs a message there and back (some 50 us) and its tensors are copied, so plain programs stay with the greenlets of
`ranks.greenlets_or_threads`.
"""
