"""What a rank noted of where it is, when it was asked or ended: the student's frames in it."""

from __future__ import annotations

import re
import signal
from ast import literal_eval

from hw_utils.core.source.lines import Frame, locate
from hw_utils.core.source.students_files import is_students

# Makes a rank's process note where it is, see `noted_frames`. Programs handle SIGUSR1 themselves (schedulers send it
# before the time is up), the last of the real-time signals hardly ever. None where there are no such signals.
ASKS_WHERE: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR1", None))
_WAITING = "greenlets_or_threads.py"  # where a virtual rank in a thread of its own waits for its turn


def noted_frames(path: str) -> tuple[Frame, ...]:
    """The student's frames in the last traceback that a rank has noted in its stack file, outermost first."""
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return ()
    stacks = _stacks(text)
    found = _of_students(stacks[-1][1]) if stacks else []
    if len(stacks) > 1 and not found and not stacks[-2][0]:  # what a way out notes of its own thread; see rank_main.py
        found = _of_students(stacks[-2][1])
    if stacks and not found:
        found = next(filter(None, map(_of_students, _other_threads(stacks))), [])
    return tuple(Frame(locate(file, line), name) for file, line, name in reversed(found))


Stack = list[tuple[str, int, str]]  # (file, line, function), innermost first


def _stacks(text: str) -> list[tuple[str, Stack]]:
    """(thread, its frames) of each traceback, in the order in which they were written.

    Python's faulthandler writes `File "cell.py"`; what a rank notes of its threads has `file 'cell.py'`, as a frame.
    """
    parts = re.split(r"(?:Current thread|Stack|Thread) ?(\w*)[^\n]*\n", text)
    frames = [
        re.findall(r"^  (?:File \"(.*)\"|file (.*)), line (\d+) in (.*)$", part, re.MULTILINE) for part in parts[2::2]
    ]
    return [
        (thread, [(file or literal_eval(spelt), int(line), name) for file, spelt, line, name in found])
        for thread, found in zip(parts[1::2], frames)
    ]


def _of_students(stack: Stack) -> Stack:
    return [frame for frame in stack if is_students(frame[0])]


def _other_threads(stacks: list[tuple[str, Stack]]) -> list[Stack]:
    """Those noted last, each time with the first one at the end, as it carries ranks; who waits for a turn is last."""
    noted = [(thread, stack) for thread, stack in stacks if thread]
    ends = [i for i, (thread, _) in enumerate(noted) if thread == noted[-1][0]]
    since = ends[-2] + 1 if len(ends) > 1 else 0
    return sorted((stack for _, stack in noted[since:-1] if stack), key=lambda stack: stack[0][0].endswith(_WAITING))
