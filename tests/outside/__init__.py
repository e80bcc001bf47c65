"""Programs and tests that others wrote, run as they are on bare gloo, under `launch` and under `simulate`.

The control decides what counts: a program is *valid* if plain processes with gloo and without hw_utils run it. Of the
valid ones, all are to give the same under both engines, but for those that `expected_failures.txt` names with a reason.

    python -m tests.outside                       # the table: PyTorch's own tests, 2, 4 and 8 ranks, all three engines
    python -m tests.outside --world 4 --only hook --show     # some of them, with what went wrong

`warm.py` is a process that starts ranks quickly, with or without hw_utils; `on_cpu.py` takes the GPU out of a test's
source; `distributed_tests.py` makes workers of PyTorch's test bodies, `operations.py` of its registered operations;
`expected.py` reads the list of failures.
Nothing else stands on this room.
"""
