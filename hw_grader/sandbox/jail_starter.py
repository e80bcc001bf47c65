"""A warm parent's loop: it forks one fresh, locked-in process for each task.

It never runs a student's code itself and answers requests on its control socket: start a process in a role, interrupt
it, look at its memory, end it with everything it has started. What is warm in it: see warm_parents.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace

from hw_grader.sandbox import call_filter, changed_pages, jailed_process, lockdown, memory_in_use
from hw_grader.sandbox.bare.jails import BareJail, BareJails, give
from hw_grader.sandbox.bare.removal import remove_folder

TRUSTED = ("drive", "judge")  # have the checks, and never a student's code
MEET = "/meet"
SCRATCH = "/scratch"
LAUNCHING = ("cells", "drive")  # have a fork server for ranks that is warm
_WATCH_S = 0.05
_WATCH_SHARE = 0.2  # of the time at most: many processes take long to look at
_FEW_PROCESSES = 20  # whose mappings are not counted
_COUNT_S, _COUNT_FOR_S = 0.5, 0.05  # how often others' are, and for how long: as many as go into it
_ANSWERS_FILES = 1024


@dataclass
class Jailed:
    """A forked process: the first one of its own process namespace, so that with it all others go."""

    pid: int
    fd: int  # of the process
    limits: lockdown.Limits
    role: str
    bare: BareJail | None  # without walls
    exited: bool = False
    over_memory: bool = False
    peak_bytes: int = 0
    looks: list[changed_pages.Look] = field(default_factory=list)


class JailStarter:
    """The loop over the control socket and the processes."""

    def __init__(
        self, control: socket.socket, uid: int | None, bare: str = "", students: socket.socket | None = None
    ) -> None:
        """uid: of the jailed processes. students: to the parent of what runs a student's code.

        bare: without walls, the folder to work in; then `uid` is the first of many.
        """
        self.control, self.uid, self.students = control, uid, students
        self.bare = BareJails(bare, uid) if bare else None
        self.meet = bare or MEET
        # torch's own schedules, which answers are asked to write; a lesson's cells show them
        self.answering = [os.path.join(path, "pipelining") for path in sys.modules["torch.distributed"].__path__]
        call_filter.program()  # known to each jail
        self.jailed: dict[int, Jailed] = {}
        self.pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.own_bytes = memory_in_use.of_process("self")
        self.count = 0 if students else 1  # odd numbers here, even ones there, or the other way round
        self.watch_next_at = self.count_next_at = 0.0
        self.mappings: dict[str, tuple[float, int]] = {}  # process -> when they were counted, their bytes

    def serve(self) -> None:
        """Answers requests until the grader hangs up."""
        try:
            self._serve()
        finally:
            for number in list(self.jailed) if self.bare else ():
                self.do_end(number)

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            alive = [p for p in self.jailed.values() if not p.exited]
            for process in alive:
                poll.register(process.fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(1000 * _WATCH_S if alive else None)}
            for process in alive:
                process.exited = process.fd in ready
            began = time.monotonic()
            if began >= self.watch_next_at:
                self._watch_memory([p for p in alive if not p.exited])
                took = time.monotonic() - began
                self.watch_next_at = time.monotonic() + max(_WATCH_S, took / _WATCH_SHARE - took)
            if self.control.fileno() in ready and not self._answer():
                return

    def _answer(self) -> bool:
        text, fds, _, _ = socket.recv_fds(self.control, 65536, 1)
        if not text:
            return False
        request = json.loads(text)
        if self.students and (request.get("role", "drive") not in TRUSTED or request.get("number", 0) % 2):
            self._pass_on(text, fds)
            return True
        try:
            reply = getattr(self, "do_" + request.pop("do"))(*fds, **request)
        except OSError as error:
            reply = {"error": str(error)}
        finally:
            for fd in fds:
                os.close(fd)
        if reply is not None:
            self.control.send(json.dumps(reply).encode())
        return True

    def _pass_on(self, text: bytes, fds: list[int]) -> None:
        socket.send_fds(self.students, [text], fds)
        for fd in fds:
            os.close(fd)
        reply = self.students.recv(65536)
        if reply:
            self.control.send(reply)

    def do_meet(self, name: str) -> dict:
        """A folder that an `answers` and a `drive` process both see, for one socket."""
        path = os.path.join(self.meet, name)
        os.mkdir(path, 0o700)
        if not self.bare:  # else it is given to the jail that meets others there
            give(path, self.uid)
        return {"path": path}

    def do_part(self, name: str) -> dict:
        """Removes such a folder."""
        with contextlib.suppress(OSError):
            remove_folder(os.path.join(self.meet, name))
        return {"parted": name}

    def do_start(self, fd: int, role: str, limits: dict, branches: bool = False, meeting: str = "") -> dict:
        """Forks a process in `role` that talks over `fd`, or with `branches` one for each wire that it is sent.

        meeting: the folder of `do_meet` in which it may make a socket.
        """
        bounds = lockdown.Limits(**limits)
        if role == "answers":  # each descriptor can hold numbers in each epoll
            bounds = replace(bounds, open_files=min(bounds.open_files, _ANSWERS_FILES))
        self.count += 2
        bare = self.bare.new(is_trusted=role in TRUSTED, meeting=meeting) if self.bare else None
        if not bare:
            lockdown.unshare(lockdown.NEW_PID)
        try:
            pid = os.fork()
            if pid == 0:
                jailed_process.leave(lambda: self._first_process(fd, role, bounds, branches, meeting, bare))
        finally:
            if not bare:
                lockdown.back_to(self.pid_namespace)
        self.jailed[self.count] = Jailed(pid, os.pidfd_open(pid), bounds, role, bare)
        return {"started": self.count}

    def do_interrupt(self, number: int) -> dict:
        """As if the student had pressed stop."""
        if number in self.jailed:
            os.kill(self.jailed[number].pid, signal.SIGINT)
        return {"interrupted": number}

    def do_look(self, number: int, lent: list) -> dict:
        """How many bytes of its memory are new since each earlier look; None where that is not to be seen.

        Where the first look went well, a later one that does not is the process's own doing: all may be new. So is
        what a look finds too many of (see `changed_pages.look_at`). What was lent and is there is not new.
        """
        process, deadline = self.jailed[number], time.monotonic() + changed_pages.LONG_S
        try:
            now = changed_pages.look_at(process.pid, deadline, lent)
        except OSError:  # no walls, or a kernel that does not let us
            return {"new": [process.limits.memory_bytes for _ in process.looks] or None}
        new = [now.new_bytes(before, deadline) for before in process.looks]
        new = [process.limits.memory_bytes if n_bytes is None else n_bytes for n_bytes in new]
        process.looks.append(now)
        return {"new": new}

    def do_end(self, number: int) -> dict:
        """Kills the process and all it has started; they are gone when the answer comes."""
        process = self.jailed.pop(number, None)
        if process is None:
            return {"ended": number, "over_memory": False, "peak_bytes": 0}
        signal.pidfd_send_signal(process.fd, signal.SIGKILL)
        os.waitpid(process.pid, 0)  # the first process of a namespace is reaped after all others
        os.close(process.fd)
        if process.bare:
            self.bare.end(process.bare, {other.pid for other in self.jailed.values()})
        return {"ended": number, "over_memory": process.over_memory, "peak_bytes": process.peak_bytes}

    def _watch_memory(self, alive: list[Jailed]) -> None:
        if not alive or self.bare:  # without walls, /proc shows other people's processes too
            return
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        in_use = sum(max(0, memory_in_use.of_process(name) - self.own_bytes) for name in names)
        in_use += self._in_mappings(names) if len(names) > _FEW_PROCESSES else 0  # of few it is little
        in_use += sum(memory_in_use.of_sockets(process.pid) for process in alive)
        for process in alive:
            process.peak_bytes = max(process.peak_bytes, in_use)
            spared = process.role == "judge" and len(alive) > 1  # it stands by while others use memory
            if in_use > process.limits.memory_bytes and not spared:
                process.over_memory = True
                signal.pidfd_send_signal(process.fd, signal.SIGKILL)

    def _in_mappings(self, names: list[str]) -> int:
        """Bytes as they were last counted; those first that were not for longest, as it takes a millisecond each."""
        self.mappings = {name: self.mappings.get(name, (0.0, 0)) for name in names}
        now = time.monotonic()
        if now >= self.count_next_at:
            for name in sorted(names, key=self.mappings.__getitem__):
                self.mappings[name] = (time.monotonic(), memory_in_use.of_mappings(name))
                if time.monotonic() > now + _COUNT_FOR_S:
                    break
            self.count_next_at = time.monotonic() + _COUNT_S
        return sum(n_bytes for _, n_bytes in self.mappings.values())

    def _first_process(
        self, fd: int, role: str, limits: lockdown.Limits, branches: bool, meeting: str, bare: BareJail | None
    ) -> int:
        """Process 1 of the new namespace: sets up the walls, forks the one that works, waits for it."""
        self.control.close()
        if self.students:
            self.students.close()
        os.close(self.pid_namespace)
        if role not in TRUSTED:
            os.nice(limits.nice)
            lockdown.goes_first()
        if bare:
            bare.enter()
            lockdown.prctl(lockdown.PR_SET_CHILD_SUBREAPER, 1)
            if role not in TRUSTED:
                lockdown.drop_rights(bare.uid)
                # no network is around it that ends: what knows a hidden case gets none
                call_filter.filter_calls(call_filter.ONLY_FILES if role == "answers" else call_filter.FAMILIES)
            lockdown.set_limits(limits)
        else:
            self._raise_walls(limits, role, meeting)
            if role == "answers":  # nobody interrupts them, and what they have started ends with them
                return jailed_process.work(fd, role, None, SCRATCH, "")
        ranks = jailed_process.fork_server(fd) if role in LAUNCHING else None
        clears = "" if not branches else "keep" if ranks else "family" if bare else "clear"
        worker = os.fork()
        if worker == 0:
            jailed_process.leave(lambda: jailed_process.work(fd, role, ranks, bare.folder if bare else SCRATCH, clears))
        if ranks is not None:
            ranks.close()
        os.close(fd)
        signal.signal(signal.SIGINT, lambda *_: os.kill(worker, signal.SIGINT))
        while True:
            pid, status = os.wait()
            if pid == worker:
                return os.waitstatus_to_exitcode(status) & 0xFF

    def _raise_walls(self, limits: lockdown.Limits, role: str, meeting: str) -> None:
        uid = self.uid if self.uid is not None else 0
        lockdown.unshare(lockdown.NEW_NS | lockdown.NEW_NET | lockdown.NEW_IPC | lockdown.NEW_UTS)
        lockdown.own_files(SCRATCH, uid, limits, sees_machine=role in TRUSTED)
        for folder in self.answering if role == "answers" else ():
            lockdown.cover(folder)
        lockdown.read_only(MEET)
        if meeting:
            lockdown.open_meeting(meeting)
        lockdown.loopback_up()
        lockdown.drop_rights(self.uid)
        lockdown.set_limits(limits)
        call_filter.filter_calls()
