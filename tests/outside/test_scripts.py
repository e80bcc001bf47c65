"""A script written for torchrun runs as it is, from a notebook and from a shell, on both engines."""

from __future__ import annotations

import atexit
import inspect
import os
import re
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from hw_utils import Deadlock, WorkerFailed, launch, simulate

TRAIN = Path(__file__).parent / "scripts" / "train.py"
both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])


def printed(run) -> list[str]:
    return [line for text in run.output for line in text.splitlines() if line.startswith("weight")]


def test_the_two_engines_train_to_the_same_weights_and_bytes():
    real, virtual = launch(TRAIN, 4, ["--lr", 0.5], echo=False), simulate(str(TRAIN), 4, ["--lr", "0.5"], echo=False)
    assert len(set(printed(real))) == 1
    assert len(printed(real)) == 4
    assert printed(real) == printed(virtual) != printed(simulate(TRAIN, 4, echo=False))
    assert [real.trace.bytes_sent(r) for r in range(4)] == [virtual.trace.bytes_sent(r) for r in range(4)]


def test_64_virtual_ranks_of_a_script_keep_their_modules_apart():
    run = simulate(TRAIN, 64, echo=False, compute="free")
    assert len(set(printed(run))) == 1
    assert len(printed(run)) == 64


@both
def test_a_backend_for_gpus_runs_as_gloo_and_says_so_once(engine, capfd):
    engine(TRAIN, 2)
    assert capfd.readouterr().out.count("nccl needs hardware that ranks have not; gloo does it here") == 1


ENDS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("cpu:gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(dist.get_backend(), dist.get_backend(dist.new_group()), total.item(), flush=True)
os._exit(int(sys.argv[1]))
"""


@both
def test_os_exit_with_0_is_a_good_end_and_with_3_is_none(engine, tmp_path):
    (script := tmp_path / "ends.py").write_text(ENDS)
    before = os._exit
    assert engine(script, 2, ["0"], echo=False).output == ["cpu:gloo cpu:gloo 2.0\n"] * 2
    assert os._exit is before
    with pytest.raises(WorkerFailed, match="exit code 3"):
        engine(script, 2, ["3"], echo=False)


AT_EXIT = """
import atexit, os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
total = torch.ones(1)

@atexit.register
def last():
    print(f"last of {rank}: {total.item()}", flush=True)

def gone():
    print("never")

atexit.register(print, "first of", rank, flush=True)
atexit.register(gone)
atexit.unregister(gone)
atexit.register(lambda: 1 / 0)
dist.init_process_group("gloo")
dist.all_reduce(total)
if rank == 1:
    sys.exit()
"""


@both
def test_what_a_script_registers_at_exit_runs_when_its_rank_ends(engine, tmp_path):
    (script := tmp_path / "ends.py").write_text(AT_EXIT)
    before = atexit.register
    for rank, text in enumerate(engine(script, 3, echo=False).output):
        said = [line for line in text.splitlines() if " of " in line or "never" in line]
        assert said == [f"first of {rank}", f"last of {rank}: 3.0"]
    assert atexit.register is before


@both
def test_the_notebooks_own_environment_arguments_and_main_stay_as_they_were(engine):
    before = dict(os.environ), list(sys.argv), list(sys.path), sys.modules["__main__"]
    options = {"isolate": False} if engine is simulate else {}
    engine(TRAIN, 2, echo=False, **options)
    assert (dict(os.environ), sys.argv, sys.path, sys.modules["__main__"]) == before
    assert "manager" not in sys.modules


@both
def test_a_script_that_waits_for_ever_is_a_deadlock_with_its_line(engine):
    with pytest.raises(Deadlock) as caught:
        engine(TRAIN, 3, ["--hang"], echo=False)
    assert caught.value.cycle == [0, 1, 2]
    assert "train.py" in str(caught.value)


@both
def test_a_script_that_wants_a_gpu_is_told_what_works_instead(engine):
    with pytest.raises(WorkerFailed, match="ranks have no GPU") as caught:
        engine(TRAIN, 2, ["--gpu"], echo=False)
    assert "train.py" in str(caught.value)


@both
def test_a_script_finds_what_torchrun_tells_its_ranks(engine, tmp_path):
    named = set(re.findall(r'"([A-Z_]+)": ', inspect.getsource(LocalElasticAgent._start_workers)))
    script = tmp_path / "told.py"
    script.write_text(
        "import os, torch.distributed as dist\n"
        f"missing = [name for name in {sorted(named)} if not os.environ.get(name)]\n"
        "print(missing, dist.is_torchelastic_launched(), os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    )
    assert len(named) > 12
    assert engine(script, 2, echo=False).output == ["[] True 0\n"] * 2


@both
def test_arguments_that_are_no_command_line_are_refused(engine):
    with pytest.raises(TypeError, match="a list of texts"):
        engine(TRAIN, 2, "--lr 0.1")
    with pytest.raises(TypeError, match="texts and numbers, got None"):
        engine(TRAIN, 2, [None])


RESUMES = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
begin = torch.load("snapshot.pt")["step"] + 1 if os.path.exists("snapshot.pt") else 0
dist.barrier()
print("begins at", begin)
for step in range(begin, 3):
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        torch.save({"step": step}, "snapshot.pt")
os.chdir(".")
"""


@both
def test_what_an_attempt_given_up_has_saved_is_not_found_by_the_next_one(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resumes.py").write_text(RESUMES)
    texts = engine(tmp_path / "resumes.py", 2, echo=False).output
    assert [text.count("begins at 0") for text in texts] == [1, 1]
    assert (tmp_path / "snapshot.pt").exists()
