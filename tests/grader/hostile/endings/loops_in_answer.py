"""An answer that never returns."""


# expects: fail limit
def fit_link(sizes, seconds):
    while True:
        pass
