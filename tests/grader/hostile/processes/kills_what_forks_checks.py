"""Kills the process that forks one for each check, and its own group."""


# expects: fail
def fit_link(sizes, seconds):
    import os
    import signal

    os.kill(os.getppid(), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)
    return 0.0, 0.0
