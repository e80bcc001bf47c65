"""What a student does outside a cell: `python -m hw_utils doctor | check | progress | submit | update | ...`."""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
from typing import TextIO

# command -> (module with `add_arguments(parser)` and `main(arguments) -> exit status`, what it does)
COMMANDS = {
    "doctor": ("hw_utils.commands.doctor", "what is wrong with this installation, and what to do about it"),
    "check": ("hw_utils.commands.check", "the visible checks of a notebook, as the class grading runs them"),
    "submit": ("hw_utils.commands.submit", "packs a notebook for the instructor, and says what is unfinished"),
    "progress": ("hw_utils.commands.progress", "every lesson's points by its visible checks, and the next exercise"),
    "update": ("hw_utils.commands.update", "brings a new version of the course into this folder, and keeps your work"),
    "run": ("hw_utils.commands.run", "runs a script for torchrun, on real processes or on the virtual cluster"),
    "export": ("hw_utils.hosts.export", "writes a notebook's function as a script for torchrun"),
    "report": ("hw_utils.hosts.training_report", "writes one HTML file of saved training runs"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; the exit status is 0 if all is well, 1 if not, 2 for a misuse."""
    parser = argparse.ArgumentParser(prog="python -m hw_utils", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        importlib.import_module(module).add_arguments(commands.add_parser(name, help=text, description=text))
    argv = sys.argv[1:] if argv is None else list(argv)
    ours = argv.index("--") if "--" in argv and argv[0] == "run" else len(argv)  # what follows is the script's own
    arguments = parser.parse_args(argv[:ours])
    arguments.after = argv[ours + 1 :]
    return importlib.import_module(COMMANDS[arguments.command][0]).main(arguments)


def main_for_a_reader(argv: list[str] | None = None) -> int:
    """`main`; where whoever reads its output has left, as `| head` does, it ends without a word, as SIGPIPE would."""
    try:
        status = main(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        gone = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
        if not gone:
            raise
        for stream in gone:  # Python writes what is left at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 128 + signal.SIGPIPE
    return status


def _has_no_reader(stream: TextIO) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    asked = select.poll()
    asked.register(stream.fileno(), select.POLLERR)
    return bool(asked.poll(0))


if __name__ == "__main__":
    sys.exit(main_for_a_reader())
