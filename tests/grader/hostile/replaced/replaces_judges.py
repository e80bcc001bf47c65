"""Puts judges that never object into the checks."""

# expects: fail
from hw_utils.checks import check, lesson_01

for one in check.REGISTRY.values():
    object.__setattr__(one, "judge", lambda data, **case: None)
check.Check.judge_one = lambda self, data, case: None
