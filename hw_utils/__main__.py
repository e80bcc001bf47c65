"""`python -m hw_utils doctor | check | submit | export | report`: what a student does outside a cell."""

from __future__ import annotations

import argparse
import importlib
import sys

# command -> (module with `add_arguments(parser)` and `main(arguments) -> exit status`, what it does)
COMMANDS = {
    "doctor": ("hw_utils.doctor", "what is wrong with this installation, and what to do about it"),
    "check": ("hw_utils.preflight", "the visible checks of a notebook, as the class grading runs them"),
    "submit": ("hw_utils.submit", "packs a notebook for the instructor, and says what is unfinished"),
    "export": ("hw_utils.export", "writes a notebook's function as a script for torchrun"),
    "report": ("hw_utils.report", "writes one HTML file of saved training runs"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; the exit status is 0 if all is well, 1 if not, 2 for a misuse."""
    parser = argparse.ArgumentParser(prog="python -m hw_utils", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        importlib.import_module(module).add_arguments(commands.add_parser(name, help=text, description=text))
    arguments = parser.parse_args(argv)
    return importlib.import_module(COMMANDS[arguments.command][0]).main(arguments)


if __name__ == "__main__":
    sys.exit(main())
