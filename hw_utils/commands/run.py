"""Runs a script for torchrun as it is, on real processes or on the virtual cluster, and says what it communicated."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hw_utils.commands.run_statistics import statistics, who_ran
from hw_utils.core.errors import WorkerFailed
from hw_utils.core.hardware import Cluster, Fold, Network
from hw_utils.core.run_result import Run
from hw_utils.launch import launch
from hw_utils.simulate import simulate

MISUSE, INTERRUPTED = 2, 130
NO_LIMIT_S = 30 * 24 * 3600.0
_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES = {"": 1.0, "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8}


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = (
        "python -m hw_utils run (SCRIPT | -m MODULE) --ranks N [--simulate] [--network LATENCY,BANDWIDTH] "
        "[--cluster NAME] [--shapes [--mesh AXIS=SIZE,... --fold AXIS,...]] [--memory] [-- ARGS]"
    )
    parser.epilog = "Everything after -- is the script's own command line."
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("script", type=Path, nargs="?", help="a script written for torchrun, as train.py")
    what.add_argument("-m", dest="module", help="a module instead of a script, as package.train")
    parser.add_argument("--ranks", type=int, required=True, help="how many ranks")
    parser.add_argument("--simulate", action="store_true", help="on the virtual cluster instead of real processes")
    parser.add_argument("--network", type=network, help="of --simulate, as 50us,10Gb/s (default: 50us,1Gb/s)")
    parser.add_argument("--cluster", type=cluster, help="simulate on this one, as h100x64")
    parser.add_argument("--shapes", action="store_true", help="simulate on tensors without values")
    parser.add_argument("--mesh", type=mesh, help="how the ranks lie, as pp=16,dp=4,tp=8: the last varies fastest")
    parser.add_argument("--fold", metavar="AXES", help="run one rank for all along these axes, as dp,tp; or all")
    parser.add_argument("--memory", action="store_true", help="say what each rank held at its peak, and whose it was")
    parser.add_argument(
        "--compute", choices=("measured", "free", "device"), help="of --simulate: what computation costs"
    )
    parser.add_argument("--timeout", type=float, default=NO_LIMIT_S, help="seconds after which it is ended")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write what every rank did as a page")
    parser.add_argument("--trace", type=Path, metavar="FILE.json", help="write the messages for ui.perfetto.dev")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write what each rank printed, a file a rank")
    parser.add_argument("--quiet", action="store_true", help="do not show what ranks print")


def network(text: str) -> Network:
    """`50us,10Gb/s`, or seconds and bytes a second as plain numbers.

    Raises:
        ArgumentTypeError: it is no such pair.

    >>> network("1ms,2MB/s")
    Network(latency_s=0.001, bandwidth_Bps=2000000.0, ranks_per_host=None, inside=None)
    """
    found = re.fullmatch(rf"\s*({_NUMBER})\s*(s|ms|us|),\s*({_NUMBER})\s*([kMGBb/s]*)\s*", text)
    if found is None or found[4] not in _BYTES:
        units = ", ".join(filter(None, _BYTES))
        raise ArgumentTypeError(
            f"latency (s, ms or us) and bandwidth ({units}) as in 50us,10Gb/s, got {text!r}; a cluster of GPUs, as "
            "h100x64, is --cluster's"
        )
    try:
        return Network(float(found[1]) * _SECONDS[found[2]], float(found[3]) * _BYTES[found[4]])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def cluster(text: str) -> Cluster:
    """The cluster of a name, as "h100x64".

    Raises:
        ArgumentTypeError: there is none; names those there are.
    """
    try:
        return Cluster.named(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def mesh(text: str) -> dict[str, int]:
    """Axis -> size.

    Raises:
        ArgumentTypeError: it is no such list.

    >>> mesh("pp=16,dp=4,tp=8")
    {'pp': 16, 'dp': 4, 'tp': 8}
    """
    found = [re.fullmatch(r"\s*(\w+)=([0-9]+)\s*", part) for part in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"axes with their sizes, the last varies fastest, as pp=16,dp=4,tp=8, got {text!r}")
    return {part[1]: int(part[2]) for part in found}


def fold_of(arguments: Namespace) -> Fold | str | None:
    """The fold that the command line asks for.

    Raises:
        ValueError: axes without a mesh, or a mesh without axes.
    """
    if arguments.fold is None and arguments.mesh is None:
        return None
    if arguments.fold == "all" and arguments.mesh is None:
        return "all"
    if arguments.fold is None or arguments.mesh is None:
        raise ValueError(
            "--fold needs the mesh whose axes it names, and --mesh axes to fold: --mesh pp=16,dp=4,tp=8 --fold dp,tp"
        )
    return Fold(arguments.mesh, tuple(axis.strip() for axis in arguments.fold.split(",")))


def main(arguments: Namespace) -> int:
    """0 if every rank came to its end; 2 for a misuse; else the exit code of the first rank that failed."""
    try:
        with _ended_as_by_hand():
            run = _run(arguments)
    except WorkerFailed as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt as error:
        print(f"interrupted\n{error}".rstrip(), file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return MISUSE
    print(run.summary())
    print(*who_ran(run.trace), *statistics(run, arguments.cluster), sep="\n")
    for path in _write(run, arguments):
        print(f"wrote {path}")
    return 0


@contextmanager
def _ended_as_by_hand() -> Iterator[None]:
    """A scheduler or `timeout` that ends the command leaves no more behind than an interrupt: no process, no file."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: Namespace) -> Run:
    options = {"timeout_s": arguments.timeout, "echo": not arguments.quiet, "memory": arguments.memory}
    chosen = {"network": arguments.network, "compute": arguments.compute, "cluster": arguments.cluster}
    chosen["fold"] = fold_of(arguments)
    if arguments.cluster is not None:
        chosen["compute"] = arguments.compute or "device"
    if arguments.shapes:
        chosen |= {"values": "shapes", "compute": chosen["compute"] or "free"}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    arguments.simulate |= arguments.shapes or arguments.cluster is not None
    if chosen and not arguments.simulate:
        raise ValueError(f"--{next(iter(chosen))} is for --simulate: real processes use what this machine has")
    for path in (arguments.report, arguments.trace):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {path}: make {path.absolute().parent} first")
    worker = f"-m {arguments.module}" if arguments.module else arguments.script
    if arguments.simulate:
        return simulate(worker, arguments.ranks, arguments.after, **options, **chosen)
    return launch(worker, arguments.ranks, arguments.after, **options)


def exit_code(error: WorkerFailed) -> int:
    """That of the first rank that failed by itself: `sys.exit(3)` gives 3, a signal 128 and its number."""
    first = error.failures[0]
    if isinstance(first.exception, SystemExit):
        return first.exception.code if isinstance(first.exception.code, int) else 1
    if first.status is not None:
        return first.status if first.status > 0 else 128 - first.status
    return 1


def _write(run: Run, arguments: Namespace) -> list[Path]:
    """The files that were asked for."""
    from hw_utils.hosts import training_report  # draws
    from hw_utils.pictures import perfetto

    written = []
    if arguments.trace is not None:
        written.append(perfetto.write(run.trace, arguments.trace))
    if arguments.report is not None:
        what = ["-m", arguments.module] if arguments.module else [str(arguments.script)]
        command = shlex.join([*what, *arguments.after])
        lines = [*who_ran(run.trace), *statistics(run, arguments.cluster)]
        written.append(training_report.write_run(run, arguments.report, command, lines))
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        for rank, text in enumerate(run.output):
            (arguments.output / f"rank_{rank}.txt").write_text(text, encoding="utf-8")
        written.append(arguments.output)
    return written
