"""The two warm parents: they import torch once; one forks what runs a student's code, one drivers and judges.

Run inside bubblewrap (sandbox.py starts the first, which forks that of students' code before it reads any check).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

import hw_utils
from hw_grader.sandbox import jailed_process, lockdown, no_checks
from hw_grader.sandbox.jail_starter import MEET, JailStarter
from hw_utils.processes import start_by_fork
from hw_utils.processes.copy_on_write import share_with_forks
from hw_utils.processes.fork_server import know_modules

ROLES = ("cells", "answers", "drive", "judge")


def _package_modules(*, checks: bool) -> list[str]:
    """The checks, or every other module of hw_utils but its command line: all is read before students' code runs."""
    root = Path(hw_utils.__path__[0])
    names = (".".join(("hw_utils", *path.relative_to(root).with_suffix("").parts)) for path in root.rglob("*.py"))
    found = (name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))
    return sorted(name for name in found if name.startswith(no_checks.NAME) is checks)


def _import(names: Iterable[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            traceback.print_exc()  # into the log; the check that needs it will say so


def warm_up() -> None:
    """Imports what every role needs, while nothing can go wrong yet; no checks."""
    start_by_fork.preload()
    _import(["cloudpickle", "matplotlib.pyplot"])
    _import(_package_modules(checks=False))
    for role in ROLES:
        importlib.import_module(f"hw_grader.driving.roles.{role}").warm_up()
    torch = sys.modules["torch"]
    torch.set_num_threads(1)
    torch.zeros(1, dtype=torch.float16).float()  # looks at the processor, once a process: jails have no files of it
    know_modules()
    share_with_forks()


def _hide_checks() -> None:
    """Nothing of them is left in the file system of this process, and of what it forks."""
    lockdown.unshare(lockdown.NEW_NS)
    lockdown.make_private()
    folders = [*hw_utils.__path__, *(os.path.join(path, "hw_utils") for path in sys.path)]
    for folder in {os.path.join(os.path.realpath(path), "checks") for path in folders}:
        if os.path.isdir(folder):
            lockdown.cover(folder)


def _parent_of_students(control: socket.socket, uid: int | None, *bare: str) -> tuple[int, socket.socket]:
    """Forks the process from which everything is forked that runs a student's code; gives the line to it, too."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        control.close()  # whoever holds it speaks with the grader
        no_checks.install()
        if not bare:  # else it ends its jails first, when nobody holds the line any more
            lockdown.prctl(lockdown.PR_SET_PDEATHSIG, signal.SIGKILL)
            _hide_checks()
        share_with_forks()
        jailed_process.leave(lambda: JailStarter(theirs, uid, *bare).serve())
    theirs.close()
    return pid, ours


def main() -> None:
    """argv: the control socket's number, the user id of the jailed processes or `-`; without walls, a folder."""
    control = socket.socket(fileno=int(sys.argv[1]))
    uid = None if sys.argv[2] == "-" else int(sys.argv[2])
    lockdown.prctl(lockdown.PR_SET_DUMPABLE, 1)
    warm_up()
    gc.enable()
    if not sys.argv[3:]:
        lockdown.close_what_is_mounted(MEET)
    pid, students = _parent_of_students(control, uid, *sys.argv[3:4])
    _import(_package_modules(checks=True))
    importlib.import_module("hw_grader.driving.roles.drive").rehearse()
    know_modules()
    share_with_forks()
    starter = JailStarter(control, uid, *sys.argv[3:4] or [""], students)
    control.send(json.dumps({"ready": os.getpid(), "threads": len(os.listdir("/proc/self/task"))}).encode())
    starter.serve()
    students.close()
    os.waitpid(pid, 0)
