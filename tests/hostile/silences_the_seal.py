"""Patches the kit while it is driven, and what would say so."""


# expects: fail
def fit_link(sizes, seconds):
    import sys

    for name in ("answers", "driver", "student", "seal"):
        sys.modules[f"hw_grader.{name}"].replaced = lambda: ""
    sys.modules["hw_grader.seal"]._sealed.clear()
    sys.modules["hw_utils.checks.check"].plain = lambda value, **k: [1e-3, 1e6]
    return 0.0, 0.0
