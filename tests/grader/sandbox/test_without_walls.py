"""Without walls, as in Gradescope's container: what a jail has started and left ends with it; root follows no link."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from functools import cache
from pathlib import Path

import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.sandbox import bubblewrap
from hw_grader.sandbox.bare.jails import give
from hw_grader.sandbox.bare.removal import remove_of_user
from hw_grader.sandbox.sandbox import Process, Sandbox
from tests.grader.small_course import EXERCISES, MAX_POINTS, as_bytes, make_course, submission

IS_ROOT = os.geteuid() == 0
STARTS = """
import ctypes, os, signal, socket, threading

def alone():
    "A process that no other one waits for."
    if os.fork():
        return False
    os.setsid()
    return True

def tells():
    end = socket.socket(socket.AF_UNIX)
    end.connect(PATH)
    end.send(b"x")
    return end
"""
N_LONG = 105
SURVIVORS = {
    "a long chain": """
def chain(n):
    end = tells()
    if n > 1 and alone():
        chain(n - 1)
    signal.pause()
if alone():
    chain(105)
""",
    "without its first thread": """
if alone():
    threading.Thread(target=lambda: (tells(), threading.Event().wait())).start()
    ctypes.CDLL(None).pthread_exit(None)
""",
    "never the same": """
if alone():
    end = tells()
    while True:
        if os.fork():
            os._exit(0)
""",
    "kills its killer": """
assert os.getuid() >= 1_000_000
if alone():
    end = tells()
    while True:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) > os.getpid():
                try:
                    os.kill(int(name), signal.SIGKILL)
                except OSError:
                    continue
""",
}
KINDS = [(False, "a long chain"), (False, "without its first thread")]
KINDS += [(True, name) for name in SURVIVORS if IS_ROOT]  # who is the same user could come and go unseen


@pytest.fixture
def open_folder():
    """A folder in which every user may write, and which no jail owns."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture(scope="module")
def sandboxes():
    """Without walls, by whether each jail is another user, as it is for root where all can read this Python."""
    with contextlib.ExitStack() as stack:
        yield cache(lambda has_users: stack.enter_context(_bare(has_users)))


@pytest.fixture(params=[False, True] if IS_ROOT else [False])
def sandbox(request, sandboxes):
    """Without walls, as root in both ways."""
    return sandboxes(request.param)


def _bare(has_users: bool) -> Sandbox:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bubblewrap, "_is_open_to_all", lambda path: has_users)
        return Sandbox(walls=False)


def run(process: Process, cell: str) -> str:
    """What a cell prints."""
    process.wire.send({"run": cell})
    reply, _ = process.wire.receive(60)
    assert reply["ok"], reply
    return "".join(o["text"] for o in reply["outputs"] if o["output_type"] == "stream")


class Told:
    """Connections of processes: each stays until the last that has it is gone."""

    def __init__(self, folder: Path) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.path = str(folder / "told")
        self.server.bind(self.path)
        os.chmod(self.path, 0o777)
        self.server.listen(200)
        self.server.settimeout(60)

    def connections(self, n: int) -> list[socket.socket]:
        found = [self.server.accept()[0] for _ in range(n)]
        for one in found:
            one.settimeout(60)
            assert one.recv(1) == b"x"
        return found

    def n_alive(self, connections: list[socket.socket]) -> int:
        """Now, without waiting for anybody."""
        n_alive = 0
        for one in connections:
            one.setblocking(False)
            try:
                one.recv(1)
            except BlockingIOError:
                n_alive += 1
            one.close()
        self.server.close()
        return n_alive


@pytest.mark.slow
@pytest.mark.parametrize(("sandbox", "name"), KINDS, indirect=["sandbox"])
def test_nothing_that_a_jail_has_started_outlives_it(open_folder, sandbox, name):
    told = Told(open_folder)
    with sandbox.start("cells") as other, sandbox.start("cells") as process:
        run(process, f"PATH = {told.path!r}\n{STARTS}{SURVIVORS[name]}")
        connections = told.connections(N_LONG if name == "a long chain" else 1)
        process.end()
        assert told.n_alive(connections) == 0
        assert run(other, "print('here')") == "here\n"


@pytest.mark.slow
def test_nothing_outlives_the_sandbox(open_folder):
    told = Told(open_folder)
    with _bare(IS_ROOT) as sandbox:
        process = sandbox.start("cells")
        run(process, f"PATH = {told.path!r}\n{STARTS}{SURVIVORS['without its first thread']}")
        connections = told.connections(1)
    process.wire.close()
    assert told.n_alive(connections) == 0


def test_a_jail_finds_nothing_of_the_one_before(sandbox):
    leaves = "import os, tempfile\nplaces = [os.getcwd(), tempfile.gettempdir(), os.environ['HOME']]\n"
    looks = leaves + "print(*(name for p in {*places, '/tmp', '/dev/shm'} for name in os.listdir(p) if 'for-' in name))"
    if sandbox_has_users(sandbox):
        leaves += "places += ['/tmp', '/dev/shm']\n"
    leaves += "[open(p + '/for-the-next', 'w').write('x') for p in places]; os.makedirs(places[-1] + '/for-it/too')"
    with sandbox.start("cells") as first:
        run(first, leaves)
        assert run(first, looks).split()
    with sandbox.start("cells") as second:
        assert run(second, looks).split() == []


def sandbox_has_users(sandbox: Sandbox) -> bool:
    with sandbox.start("cells") as process:
        return run(process, "import os; print(os.getuid())").strip() != str(os.geteuid())


def test_what_root_writes_into_is_roots_and_no_link_is_followed(tmp_path, open_folder):
    with _bare(IS_ROOT) as sandbox, sandbox.meeting() as path, sandbox.start("cells", meeting=path) as process:
        uid = int(run(process, f"import os; open({path!r} + '/mine', 'w'); print(os.getuid())"))
        for folder in (Path(path), Path(run(process, "print(os.getcwd())").strip())):
            assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (uid, 0o700)
            above = folder.parent.stat()
            assert (above.st_uid, above.st_mode & 0o077) == (os.geteuid(), 0o011 if IS_ROOT else 0)
    (tmp_path / "secret").write_text("")
    (open_folder / "link").symlink_to(tmp_path / "secret")
    give(str(open_folder / "link"), uid)
    remove_of_user(uid, (str(open_folder), str(open_folder / "not there")))
    assert list(open_folder.iterdir()) == []
    assert (tmp_path / "secret").stat().st_uid == os.geteuid()


@pytest.mark.slow
def test_no_text_that_a_student_sees_was_made_by_who_knows_a_hidden_case(tmp_path, open_folder, sandbox):
    trusted = read_trusted(make_course(tmp_path))
    if IS_ROOT:
        os.chown(open_folder, 65534, 65534)  # in a folder of somebody else's nothing is removed
    here = f"    import os\n    folder = {str(open_folder)!r}\n"
    keeps = here + "    os.makedirs(f'{folder}/{world_size, n_rounds}', exist_ok=True)\n"
    tells = here + "    raise ValueError(sorted(os.listdir(folder)))"
    signature, body, *_ = EXERCISES["ping_pong"]
    answers = {"ping_pong": signature + keeps + body, "fit_link": EXERCISES["fit_link"][0] + tells}
    record = grade_bytes(as_bytes(submission(answers)), trusted, sandbox, "ada")
    by_id = {v.grade_id: v for v in record.verdicts}
    assert (by_id["check-ping_pong"].state, by_id["check-fit_link"].state) == ("pass", "fail")
    assert "(3, 7)" in os.listdir(open_folder)
    assert "(2, " in by_id["check-fit_link"].shown
    assert not any("(3, 7)" in v.shown for v in record.verdicts)


@pytest.mark.slow
def test_right_answers_have_all_points(tmp_path, sandbox):
    trusted = read_trusted(make_course(tmp_path))
    record = grade_bytes(as_bytes(submission()), trusted, sandbox, "ada")
    assert (record.points, record.state) == (MAX_POINTS, "pass"), record.verdicts
