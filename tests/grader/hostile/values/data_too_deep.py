"""Data nested 100,000 deep."""


# expects: fail tampered limit
def fit_link(sizes, seconds):
    nested = []
    for _ in range(100_000):
        nested = [nested]
    return nested
