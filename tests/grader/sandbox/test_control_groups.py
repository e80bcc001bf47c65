"""A sandbox has one share of the processors, however many processes and sessions a submission asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hw_grader.sandbox.control_groups import Share
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import inside, needs_sandbox

SPINS = "import os\nfor n in range(30):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\n"


@needs_sandbox
@pytest.mark.slow
def test_what_a_submission_starts_stays_in_its_sandboxs_group_and_session():
    with Sandbox() as sandbox:
        group = sandbox.share.path
        with sandbox.start("cells") as process:
            process.wire.send({"run": SPINS})
            assert process.wire.receive(60)[0]["ok"]
            _, jailed = inside(sandbox)
            sessions = {os.getsid(p.pid) for p in jailed}
            assert len(jailed) > 30
            assert len(sessions) <= 3  # the jail's first process, what works in it, the fork server of its ranks
            ours = os.getpriority(os.PRIO_PROCESS, 0)
            nice = {os.getpriority(os.PRIO_PROCESS, p.pid) for p in jailed}
            assert nice == {min(19, ours + sandbox.share.nice)}  # its warm parent comes first, and so can end it
            if group is not None:
                n_groups = len({str(group), str(sandbox.share.memory or group)})  # with version 2 they are one
                told = {Path(f"/proc/{p.pid}/cgroup").read_text().count(f"/{group.name}\n") for p in jailed}
                assert told == {n_groups}
    assert group is None or not group.exists()


@pytest.mark.parametrize("made_by_hand", ["v1", "v2", "v2 above"])
def test_a_group_is_made_where_processors_are_given_on_and_those_of_killed_graders_go(tmp_path, made_by_hand):
    told, parent = "5:memory:/m\n4:cpu,cpuacct:/a/b\n0::/\n", tmp_path / "cpu,cpuacct" / "a" / "b"
    if made_by_hand != "v1":
        told, parent = "0::/a/b\n", tmp_path / "a" if made_by_hand == "v2 above" else tmp_path / "a" / "b"
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        (tmp_path / "a" / "b" / "cgroup.subtree_control").write_text("")
        (parent / "cgroup.subtree_control").write_text("cpu memory\n")
    parent.mkdir(parents=True, exist_ok=True)
    dead, alive = parent / f"hw_grader-{2**22 + 1}-7", parent / f"hw_grader-{os.getppid()}-7"
    dead.mkdir()
    alive.mkdir()
    share = Share(tmp_path, told)
    assert share.path.parent == parent
    assert share.command(["bwrap", "x"])[3:] == [str(share.path), "bwrap", "x"]
    assert (dead.exists(), alive.exists()) == (False, True)
    path = share.path
    share.close()
    share.close()
    assert not path.exists()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_memory_is_bounded_where_a_group_may_be_made_and_who_was_ended_for_it_is_known(tmp_path, monkeypatch, version):
    kinds = {"v1": ("limit_in_bytes", "memsw.limit_in_bytes", "oom_control"), "v2": ("max", "swap.max", "events")}
    most, swap, said = kinds[version]
    parent = tmp_path / ("memory" if version == "v1" else "") / "a"
    parent.mkdir(parents=True)
    if version == "v2":
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        (parent / "cgroup.subtree_control").write_text("memory\n")
    made = Path.mkdir

    def as_the_kernel_does(path: Path, *arguments, **options) -> None:
        made(path, *arguments, **options)
        (path / f"memory.{most}").write_text("none")

    monkeypatch.setattr(Path, "mkdir", as_the_kernel_does)
    share = Share(tmp_path, "0::/a\n" if version == "v2" else "3:memory:/a\n", memory_bytes=7 * 2**20)
    assert (share.path, share.memory.parent, share.nice) == (None, parent, 0)
    assert (share.memory / f"memory.{most}").read_text() == str(7 * 2**20)
    assert (share.memory / f"memory.{swap}").read_text() == ("0" if version == "v2" else str(7 * 2**20))
    assert share.n_out_of_memory == 0
    (share.memory / f"memory.{said}").write_text("under_oom 0\noom_kill 2\n")
    assert share.n_out_of_memory == 2
    assert share.command(["bwrap"])[3:] == [str(share.memory), "bwrap"]


def test_without_a_group_the_command_stays_as_it_is(tmp_path):
    for told in ("", "0::/a\n", "3:cpu:/gone\n"):
        share = Share(tmp_path, told)
        assert share.path is None
        assert share.command(["bwrap"]) == ["bwrap"]
        share.close()


@needs_sandbox
def test_what_drives_an_answer_does_not_give_way_to_it():
    with Sandbox() as sandbox, sandbox.start("drive"), sandbox.start("judge"):
        _, trusted = inside(sandbox)
        assert {os.getpriority(os.PRIO_PROCESS, p.pid) for p in trusted} == {os.getpriority(os.PRIO_PROCESS, 0)}
