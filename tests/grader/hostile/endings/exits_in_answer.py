"""os._exit in answers, with the status of success."""


# expects: fail crashed
def ping_pong(rank, world_size, n_rounds):
    import os

    os._exit(0)


def fit_link(sizes, seconds):
    import os

    os._exit(0)
