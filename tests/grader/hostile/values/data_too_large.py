"""Data of 1 GB for the judge."""


# expects: fail limit crashed
def fit_link(sizes, seconds):
    return ["x" * 10**6] * 1000
