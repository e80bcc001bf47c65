"""Walks the stack for the case, which holds the right answer."""


# expects: fail
def fit_link(sizes, seconds):
    import sys

    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, dict) and "bandwidth_Bps" in value:
                raise SystemExit("found " + str(value))
        frame = frame.f_back
    return 0.0, 0.0
