"""Ranks that are processes of their own, on the same virtual clock.

For programs that change what a process has once: a module's global, the working directory, torch's default dtype.
`hub` has the engine and speaks for the ranks, one at a time; `life` is what runs in a rank's process, `member` what
asks the hub there, `handles` what its calls give back, `devices` both for a rank with a virtual device. Every call
costs a message there and back (some 50 us) and its tensors are copied, so plain programs stay with the greenlets of
`ranks.greenlets_or_threads`.
"""
