"""Makes CheckFailed and AssertionError harmless."""

# expects: fail
import builtins
from hw_utils.core import errors


class Harmless(BaseException):
    def __new__(cls, *a, **k):
        return SystemExit(0)


errors.CheckFailed.__init__ = lambda self, *a, **k: None
errors.CheckFailed.__str__ = lambda self: "ok"
builtins.AssertionError = Harmless
errors.CheckFailed = Harmless
