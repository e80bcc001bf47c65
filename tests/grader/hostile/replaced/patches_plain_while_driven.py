"""Replaces the function that makes data plain, from inside the answer."""


# expects: fail
def fit_link(sizes, seconds):
    from hw_utils.checks import check

    check.plain = lambda value, **k: [1e-3, 1e6]
    return 0.0, 0.0
