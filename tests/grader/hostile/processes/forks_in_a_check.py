"""Forks in its answer, and both processes go on serving."""


# expects: fail crashed limit
def fit_link(sizes, seconds):
    import os

    os.fork()
    return 0.0, 0.0
