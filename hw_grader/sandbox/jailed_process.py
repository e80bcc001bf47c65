"""What happens inside one jail: a process in a role, the branches that it forks, a fork server for ranks.

A jail with branches is one place for many checks of one submission. Its own process reads nothing that a student
wrote: it takes wires and forks a fresh process for each, so that no check sees what another one did to its process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import traceback
from functools import partial

from hw_grader.sandbox import call_filter, lockdown
from hw_utils.processes import start_by_fork


def leave(work) -> None:
    """Runs `work` in a forked child and never comes back to the parent's code."""
    code = 70
    try:
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_server(fd: int) -> socket.socket:
    """The process that forks ranks for `launch`: warm, and without `fd`, the wire to the grader."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        os.close(fd)
        ours.close()
        _silence()
        call_filter.stay_in_session()
        leave(lambda: start_by_fork.serve(theirs))
    theirs.close()
    return ours


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def work(fd: int, role: str, ranks: socket.socket | None, folder: str, clears: str) -> int:
    """Serves `fd` in the role of a module of ours; ranks: its fork server.

    clears: empty; or a process is forked for each wire that comes over `fd`, and this says what ends before each:
        "clear" everything else in this namespace; "family", where there is none, all that this process has started;
        "keep" nothing, for trusted processes that end by themselves.
    """
    lockdown.prctl(lockdown.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    os.setsid()
    os.umask(0o077)
    _silence()
    end, main = socket.socket(fileno=fd), importlib.import_module(f"hw_grader.driving.roles.{role}").main
    if clears:
        return _branch(end, main, ranks, clears)
    _serve(end, main, ranks)
    return 0


def _branch(end: socket.socket, main, ranks: socket.socket | None, clears: str) -> int:
    if clears == "family":
        lockdown.prctl(lockdown.PR_SET_CHILD_SUBREAPER, 1)
    while True:
        _, fds, _, _ = socket.recv_fds(end, 1, 1)
        if not fds:
            return 0
        if clears == "clear":
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        elif clears == "family":
            _end_family()
        _reap(0 if clears == "clear" else os.WNOHANG)
        if os.fork() == 0:
            end.close()
            leave(partial(_serve_branch, fds[0], main, ranks))
        os.close(fds[0])


def _serve_branch(fd: int, main, ranks: socket.socket | None) -> None:
    os.setsid()
    _serve(socket.socket(fileno=fd), main, ranks)


def _serve(end: socket.socket, main, ranks: socket.socket | None) -> None:
    lockdown.prctl(lockdown.PR_SET_PDEATHSIG, signal.SIGKILL)
    call_filter.stay_in_session()
    lockdown.prctl(lockdown.PR_SET_DUMPABLE, 1)  # to read its own /proc/self; a parent of branches is closed to them
    if ranks is not None:
        start_by_fork.adopt(ranks)
    main(end)


def children_of(pid: int) -> list[int]:
    """The processes that `pid`, of one thread, has started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _end_family() -> None:
    while children := children_of(os.getpid()):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _reap(how: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass
