"""A rank that never returns and cannot be interrupted."""


# expects: fail limit
def ping_pong(rank, world_size, n_rounds):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
