"""Forks without end while a check runs."""


# expects: fail limit crashed
def fit_link(sizes, seconds):
    import os

    while True:
        try:
            os.fork()
        except OSError:
            pass
