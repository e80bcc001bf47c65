"""Jails without walls, in a container that is thrown away: processes and files of one end with it all the same.

As root each jail is a user that nobody else is, so that all its processes can be found and killed at once, and what it
has left in other folders can be told from anybody's. Else it is this user: then what its processes have started.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from hw_grader.sandbox import jailed_process, lockdown
from hw_grader.sandbox.bare.removal import remove_folder, remove_of_user

N_USERS = 512  # of one parent; the first one is never a jail's
_AT_HOME = ("HOME", "TMPDIR", "MPLCONFIGDIR", "IPYTHONDIR")


@dataclass(frozen=True)
class BareJail:
    """A folder that no other jail has; and a user, None if that is the user of the parent."""

    folder: str
    uid: int | None

    def enter(self) -> None:
        """In its first process: home and temporary files are in its own folder."""
        os.environ.update(dict.fromkeys(_AT_HOME, self.folder))
        tempfile.tempdir = None


class BareJails:
    """Makes and ends the jails of one parent, which adopts all processes that lose theirs."""

    def __init__(self, folder: str, first_uid: int | None) -> None:
        """folder: belongs to the parent, which writes into it."""
        self.folder, self.nobody = folder, None
        if first_uid is not None:
            self.nobody = first_uid + N_USERS * os.getpid()
        self.numbers = itertools.count()
        self.ours = set(_below(os.getpid(), set()))  # no jail's
        lockdown.prctl(lockdown.PR_SET_CHILD_SUBREAPER, 1)

    def new(self, *, is_trusted: bool, meeting: str = "") -> BareJail:
        """A jail with a fresh folder; it owns that one, and the one in which it meets others."""
        uid = None if is_trusted or self.nobody is None else self._free_uid()
        jail = BareJail(os.path.join(self.folder, f"jail-{os.getpid()}-{next(self.numbers)}"), uid)
        os.mkdir(jail.folder, 0o700)
        for path in (jail.folder, *([meeting] if meeting else [])):
            give(path, uid)
        return jail

    def _free_uid(self) -> int:
        taken = {uid for _, uids in _processes().values() for uid in uids}
        numbers = (1 + next(self.numbers) % (N_USERS - 1) for _ in range(N_USERS))
        return next(uid for uid in (self.nobody + n for n in numbers) if uid not in taken)

    def end(self, jail: BareJail, others: set[int]) -> None:
        """Kills all processes of a jail, whose first one is dead; when it comes back they are gone, and its files.

        others: first processes of jails that go on.
        """
        spared = self.ours | others
        while left := [pid for pid in self._left(jail, spared) if not _is_over_within(pid, 0)]:
            if jail.uid is not None:
                self._kill_user(jail.uid)
            else:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for pid in left:
                _is_over_within(pid, 1000)
        for pid in set(_children()) - spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        remove_folder(jail.folder)
        if jail.uid is not None:
            remove_of_user(jail.uid)

    def _left(self, jail: BareJail, spared: set[int]) -> list[int]:
        if jail.uid is None:
            return list(_below(os.getpid(), spared))
        return [pid for pid, (_, uids) in _processes().items() if jail.uid in uids]

    def _kill_user(self, uid: int) -> None:
        """By a process that may kill this user's processes only, and that these may not kill: it is somebody else."""
        killer = os.fork()
        if killer == 0:
            jailed_process.leave(lambda: _kill_as(self.nobody, uid))
        os.waitpid(killer, 0)


def give(path: str, uid: int | None) -> None:
    """Gives a file or folder to a user; a link is given itself."""
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def _kill_as(nobody: int, uid: int) -> None:
    os.setgroups([])
    os.setresuid(nobody, uid, nobody)
    lockdown.drop_capabilities()
    os.kill(-1, signal.SIGKILL)  # at one time, so none of them can start another one meanwhile


def _processes() -> dict[int, tuple[int, list[int]]]:
    """Of each process its parent and its user ids."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            with open(f"/proc/{name}/status", errors="replace") as status:
                lines = dict(line.split(":", 1) for line in status if line.startswith(("PPid:", "Uid:")))
            found[int(name)] = int(lines["PPid"]), [int(word) for word in lines["Uid"].split()]
    return found


def _children() -> list[int]:
    return [pid for pid, (parent, _) in _processes().items() if parent == os.getpid()]


def _below(top: int, spared: set[int]) -> Iterator[int]:
    """The processes that a process has started, those that they have started, and so on."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in _processes().items():
        children.setdefault(parent, []).append(pid)
    waiting = [top]
    while waiting:
        found = [pid for pid in children.get(waiting.pop(), ()) if pid not in spared]
        waiting += found
        yield from found


def _is_over_within(pid: int, ms: int) -> bool:
    """Whether all threads of a process have ended, or do in that time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(ms))
    finally:
        os.close(fd)
