"""A script written for torchrun runs as it is, from a notebook and from a shell, on both engines."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from hw_utils import Deadlock, WorkerFailed, launch, simulate
from hw_utils.__main__ import main

TRAIN = Path(__file__).parent / "scripts" / "train.py"
both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])
both_options = pytest.mark.parametrize("options", [[], ["--simulate"]], ids=["launch", "simulate"])


def command(*arguments: str, options: list[str], ranks: int = 3) -> int:
    return main(["run", str(TRAIN), "--ranks", str(ranks), *options, "--", *arguments])


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


REGISTERED = """
from types import SimpleNamespace
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
dist.Backend._plugins["GLOO"] = SimpleNamespace(creator_fn=c10d.is_initialized)  # torch's own, as from 2.14 on
dist.init_process_group("cpu:gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
"""


@both
def test_gloo_stays_ours_where_torch_has_registered_it(engine, tmp_path):
    (script := tmp_path / "registered.py").write_text(REGISTERED)
    run = engine(script, 2, echo=False, timeout_s=30)
    assert run.output == ["2.0\n"] * 2
    assert len(run.trace.of_op("all_reduce")) == 2


BY_HAND = """
import torch.distributed as dist
dist.init_process_group("gloo")
import torch
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
group = dist.ProcessGroupGloo(store, rank, size)
total, first, parts = torch.ones(2) * rank, torch.ones(1) * rank, [torch.zeros(1) for _ in range(size)]
group.allreduce(total).wait()
group.broadcast(first, root=1).wait()
group.allgather([parts], [torch.ones(1) * rank]).wait()
dist.barrier(group=group)
print(total.tolist(), first.item(), [p.item() for p in parts], group.rank(), group.size())
"""


@both
def test_a_group_made_by_hand_is_one_more(engine, tmp_path):
    (script := tmp_path / "by_hand.py").write_text(BY_HAND)
    run = engine(script, 3, echo=False)
    assert run.output == [f"[3.0, 3.0] 1.0 [0.0, 1.0, 2.0] {rank} 3\n" for rank in range(3)]


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


@both_options
def test_the_command_prints_what_ranks_print_a_summary_and_writes_the_files(options, tmp_path, capsys):
    page, messages, texts = tmp_path / "run.html", tmp_path / "run.json", tmp_path / "printed"
    files = ["--report", str(page), "--trace", str(messages), "--output", str(texts)]
    assert command("--lr", "0.25", options=[*options, *files]) == 0
    shown = capsys.readouterr().out
    assert shown.count("weight ") == 3
    assert "[rank 2] weight " in shown
    assert "3 ranks, " in shown
    assert "train.py --lr 0.25" in page.read_text()
    assert page.read_text().count("data:image/png;base64,") == 2
    assert {e["pid"] for e in json.loads(messages.read_text())["traceEvents"]} == {0, 1, 2}
    assert sorted(path.name for path in texts.iterdir()) == ["rank_0.txt", "rank_1.txt", "rank_2.txt"]


@both_options
@pytest.mark.parametrize(("arguments", "status"), [(["--fail", "1"], 3), (["--hang"], 1), (["--lr", "fast"], 2)])
def test_the_commands_exit_code_is_the_scripts(options, arguments, status, capsys):
    assert command(*arguments, options=options) == status
    assert "train.py, line" in capsys.readouterr().err


def test_the_command_works_in_a_shell():
    arguments = [sys.executable, "-m", "hw_utils", "run", TRAIN, "--ranks", "2", "--simulate", "--network", "1ms,1MB/s"]
    done = subprocess.run([*arguments, "--", "--fail", "0"], capture_output=True, text=True)
    assert done.returncode == 3
    assert "called sys.exit(3)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py", "--ranks", "2"], "nothing.py is no such file"),
        ([str(TRAIN.parent), "--ranks", "2"], "is a folder"),
        (["lesson.ipynb", "--ranks", "2"], "python -m hw_utils export"),
        ([str(TRAIN), "--ranks", "0"], "world_size must be at least 1, got 0"),
        ([str(TRAIN), "--ranks", "2", "--network", "1ms,1MB/s"], "--network is for --simulate"),
        ([str(TRAIN), "--ranks", "2", "--report", "no/such/folder/run.html"], "there is no folder for"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys):
    assert main(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("network", ["1ms", "fast,1GB/s", "1ms,0", "1ms,1furlong", "-1,1"])
def test_a_network_that_is_none_is_refused_with_an_example(network, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["run", str(TRAIN), "--ranks", "2", "--simulate", "--network", network])
    assert caught.value.code == 2
    assert "--network" in capsys.readouterr().err


@both
def test_arguments_that_are_no_command_line_are_refused(engine):
    with pytest.raises(TypeError, match="a list of texts"):
        engine(TRAIN, 2, "--lr 0.1")
    with pytest.raises(TypeError, match="texts and numbers, got None"):
        engine(TRAIN, 2, [None])


def again(rank, world_size):
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    total = torch.ones(1)
    dist.all_reduce(total)
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        half = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(total, group=half)
        dist.all_reduce(total)
    return total.item()


@both
def test_a_function_may_join_leave_and_join_again(engine):
    assert engine(again, 3, echo=False).results == engine(again, 3, echo=False).results == [75.0] * 3


def twice(rank, world_size):
    import torch.distributed as dist

    dist.init_process_group()
    dist.init_process_group()


def as_another(rank, world_size):
    import torch.distributed as dist

    dist.init_process_group(rank=0, world_size=1)


@both
@pytest.mark.parametrize(("worker", "message"), [(twice, "twice"), (as_another, "the ranks of a run are fixed")])
def test_a_second_group_of_all_or_one_of_other_ranks_is_refused(engine, worker, message):
    with pytest.raises(WorkerFailed, match=message):
        engine(worker, 2, echo=False)


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


GOES_ON = """\
import os, torch.distributed as dist
dist.init_process_group("gloo")
open("mine.txt", "w").close()
dist.barrier()
print("begun", flush=True)
while True:
    dist.barrier()
"""


@both_options
def test_a_command_that_a_scheduler_ends_leaves_no_process_and_no_file(options, tmp_path):
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, "-m", "hw_utils", "run", "goes_on.py", "--ranks", "2", *options]
    environment = {**os.environ, "TMPDIR": str(files), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchs")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert any("begun" in line for line in process.stdout)
        process.terminate()
        process.stdout.read()  # comes to its end when nobody holds the other one any more
        assert process.wait() == 128 + signal.SIGTERM
    assert list(files.iterdir()) == []


CHATS = """\
import os, torch.distributed as dist
dist.init_process_group("gloo")
open(f"started{dist.get_rank()}", "w").close()
while True:
    dist.barrier()
    print("one more line", flush=True)
"""


@both_options
def test_a_command_whose_reader_goes_away_ends_without_a_word_and_leaves_nothing(options, tmp_path):
    (tmp_path / "chats.py").write_text(CHATS)
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, "-m", "hw_utils", "run", "chats.py", "--ranks", "2", *options]
    environment = {**os.environ, "TMPDIR": str(files), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchs")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes, text=True) as process:
        assert "one more line" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""  # comes to its end when nobody holds the other one any more
        assert process.wait() == 128 + signal.SIGPIPE
    assert list(files.iterdir()) == []


NAMED = """\
import torch.distributed as dist
for options in {}, {"backend": "gloo"}, {"backend": "cpu:gloo"}:
    dist.init_process_group(**options)
    world, pair, all_again = dist.group.WORLD, dist.new_group([0, 1]), dist.new_group(backend="gloo")
    names = [group.group_name for group in (world, pair, all_again)]
    backends = [dist.get_backend(group) for group in (world, pair, all_again)]
    print(*backends, dist.get_backend_config(world), *names, world.group_desc, dist.get_process_group_ranks(pair))
    dist.all_reduce(dist.distributed_c10d.torch.ones(1), group=pair)
    dist.destroy_process_group()
"""


@both
def test_backends_and_groups_have_the_names_that_gloo_gives_them_each_time_they_are_made(engine, tmp_path):
    (tmp_path / "named.py").write_text(NAMED)
    assert engine(tmp_path / "named.py", 2, echo=False).output == 2 * [
        "undefined undefined gloo cpu:gloo 0 1 2 default_pg [0, 1]\n"
        "gloo gloo gloo cpu:gloo,cuda:gloo 0 1 2 default_pg [0, 1]\n"
        "cpu:gloo cpu:gloo gloo cpu:gloo 0 1 2 default_pg [0, 1]\n"
    ]


GROWS = """\
import os, torch, torch.distributed as dist
rank, files = int(os.environ["RANK"]), f"file://{os.getcwd()}/"

def world(name, ranks):
    if rank not in ranks:
        return
    dist.init_process_group("gloo", init_method=files + name, rank=ranks.index(rank), world_size=len(ranks))
    for group in dist.group.WORLD, dist.new_group([0, 1]), dist.new_group():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            total = torch.tensor([10.0**rank])
            dist.all_reduce(total, group=group)
            print(name, group.group_name, dist.get_process_group_ranks(group), int(total))
    dist.destroy_process_group()

world("three", [2, 1, 0])
world("two", [0, 1])
world("all", [0, 1, 2, 3])
"""


@both
def test_worlds_that_shrink_and_grow_have_groups_of_their_own(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grows.py").write_text(GROWS)
    three = ["three 0 [0, 1, 2] 111", "three 1 [0, 1] 110", "three 2 [0, 1, 2] 111"]
    two = ["two 0 [0, 1] 11", "two 1 [0, 1] 11", "two 2 [0, 1] 11"]
    four = ["all 0 [0, 1, 2, 3] 1111", "all 1 [0, 1] 11", "all 2 [0, 1, 2, 3] 1111"]
    assert [text.splitlines() for text in engine(tmp_path / "grows.py", 4, echo=False).output] == [
        [*three[::2], *two, *four],
        [*three, *two, *four],
        [*three, *four[::2]],
        four[::2],
    ]


GIVES_UP = """\
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=1.5))
rank, pair = dist.get_rank(), dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
calls = {
    0: lambda: dist.recv(torch.ones(1), 1, group=pair),
    1: lambda: dist.recv(torch.ones(1)),
    2: lambda: dist.irecv(torch.ones(1), 0).wait(),
    3: lambda: dist.isend(torch.ones(1), 0).wait(timedelta(seconds=0.5)),
}
try:
    calls[rank]()
except RuntimeError:
    print("gave up")
"""


@both
def test_a_message_that_does_not_come_in_its_groups_time_is_given_up_and_the_program_goes_on(engine, tmp_path):
    (tmp_path / "gives_up.py").write_text(GIVES_UP)
    assert engine(tmp_path / "gives_up.py", 4, echo=False).output == ["gave up\n"] * 4
