"""Puts functions that print ok in place of the checks."""

# expects: fail
from hw_utils import checks


def ok(*answers, cases=None):
    print("ok: all right")


for name in ("hello", "ping_pong", "fit_link", "predictions"):
    setattr(checks.lesson_01, name, ok)
