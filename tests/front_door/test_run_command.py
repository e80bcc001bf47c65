"""The command `python -m hw_utils run`: what it prints, its exit codes, and what is left when it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hw_utils.__main__ import main

TRAIN = Path(__file__).parents[1] / "outside" / "scripts" / "train.py"
both_options = pytest.mark.parametrize("options", [[], ["--simulate"]], ids=["launch", "simulate"])


def command(*arguments: str, options: list[str], ranks: int = 3) -> int:
    return main(["run", str(TRAIN), "--ranks", str(ranks), *options, "--", *arguments])


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


PACKAGE = {
    "package/__init__.py": "import package.settings\n",
    "package/settings.py": "words = ['settings']\n",
    "package/train.py": """\
import sys, torch.distributed as dist
from . import settings
from .settings import words
import package
dist.init_process_group("gloo")
words.append("more")
assert package.settings is settings and settings.words == ["settings", "more"]
print(__name__, __package__, __spec__.name, sys.argv[1:], dist.get_rank())
""",
    "package/inner/__main__.py": "from ..settings import words\nprint('main of', __package__, words)\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@both_options
def test_a_module_is_run_by_its_name_with_its_package(options, package, capsys):
    assert main(["run", "-m", "package.train", "--ranks", "2", *options, "--", "--lr", "1"]) == 0
    shown = capsys.readouterr().out
    for rank in range(2):
        assert f"[rank {rank}] __main__ package package.train ['--lr', '1'] {rank}" in shown
    assert main(["run", "-m", "package.inner", "--ranks", "1", *options]) == 0
    assert "main of package.inner ['settings']" in capsys.readouterr().out


@both_options
def test_a_file_that_misses_its_package_is_told_how_to_be_run(options, package, capsys):
    assert main(["run", "package/train.py", "--ranks", "1", *options]) == 1
    shown = capsys.readouterr().err
    assert "no known parent package. Next step: run it with its package, -m package.train in place of" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["package.train"], "Next step: -m package.train, it is a module's name"),
        (["-m", "package.trains"], "there is no module package.trains"),
        (["-m", "package"], "there is no module package,"),  # it has no __main__
    ],
)
def test_a_name_that_is_none_is_one_sentence(arguments, message, package, capsys):
    assert main(["run", *arguments, "--ranks", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("network", ["1ms", "fast,1GB/s", "1ms,0", "1ms,1furlong", "-1,1"])
def test_a_network_that_is_none_is_refused_with_an_example(network, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["run", str(TRAIN), "--ranks", "2", "--simulate", "--network", network])
    assert caught.value.code == 2
    assert "--network" in capsys.readouterr().err


def started(text: str, options: list[str], folder: Path, **pipes) -> subprocess.Popen:
    """The command on two ranks of a script, whose temporary files are in folder/files."""
    (folder / "script.py").write_text(text)
    (folder / "files").mkdir()
    command = [sys.executable, "-m", "hw_utils", "run", "script.py", "--ranks", "2", *options]
    environment = {**os.environ, "TMPDIR": str(folder / "files"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchs")}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, **pipes)


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
    with started(GOES_ON, options, tmp_path) as process:
        assert any("begun" in line for line in process.stdout)
        process.terminate()
        process.stdout.read()  # comes to its end when nobody holds the other one any more
        assert process.wait() == 128 + signal.SIGTERM
    assert list((tmp_path / "files").iterdir()) == []


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
    with started(CHATS, options, tmp_path, stderr=subprocess.PIPE) as process:
        assert "one more line" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""  # comes to its end when nobody holds the other one any more
        assert process.wait() == 128 + signal.SIGPIPE
    assert list((tmp_path / "files").iterdir()) == []
