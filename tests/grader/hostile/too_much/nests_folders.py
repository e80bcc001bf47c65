"""Folders in folders where its process meets the checks': nobody goes down by recursion."""


# expects: fail crashed
def ping_pong(rank, world_size, n_rounds):
    import glob, os

    for place in ["/meet", *glob.glob("/meet/*")]:
        try:
            folder = os.open(place, os.O_DIRECTORY)
            for _ in range(3000):
                os.mkdir("d", dir_fd=folder)
                folder, old = os.open("d", os.O_DIRECTORY, dir_fd=folder), folder
                os.close(old)
        except OSError:
            continue


def fit_link(sizes, seconds):
    return input()
