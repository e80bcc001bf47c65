"""`python -m tests.outside`: how much of what bare gloo passes do launch and simulate pass."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from tests.outside.expected import ENGINES, FILE, read, surprises, without_stale
from tests.outside.suite import Result, counts, run_tests, valid_tests


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--world", type=int, nargs="+", default=[2, 4, 8], help="world sizes (default: 2 4 8)")
    parser.add_argument("--engine", nargs="+", default=list(ENGINES), choices=ENGINES, help="default: all three")
    parser.add_argument("--only", default="", help="only tests with this in their names")
    parser.add_argument("--tests", nargs="+", default=[], help="only these tests")
    parser.add_argument("--valid", action="store_true", help="leave out what the list says that bare gloo fails")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a test may take (default: 60)")
    parser.add_argument("--show", action="store_true", help="print the whole message of each failure")
    parser.add_argument("--drop-stale", action="store_true", help="take lines out of the list whose tests passed")
    parser.add_argument("--save", metavar="FILE", help="write every result, one JSON object a line")
    arguments = parser.parse_args()
    expected = read()

    def chosen(engine: str, world: int, name: str) -> bool:
        is_out = arguments.valid and any(e.covers("raw", world, name) for e in expected)
        return arguments.only in name and (not arguments.tests or name in arguments.tests) and not is_out

    results = []
    found = run_tests(arguments.world, arguments.engine, tests=chosen, jobs=arguments.jobs, timeout_s=arguments.timeout)
    for result in tqdm(found, unit=" tests", disable=not sys.stderr.isatty()):
        results.append(result)
        if arguments.show and result.failure:
            tqdm.write(f"--- {result.engine}, {result.world_size} ranks, {result.test}\n{result.details}")
        if arguments.save:
            with open(arguments.save, "a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    _print(results, expected)
    ran = {(r.engine, r.world_size, r.test): r.failure for r in results if r.status != "skipped"}
    if arguments.drop_stale:
        Path(FILE).write_text(without_stale(Path(FILE).read_text(), ran))
        expected = read()
    wrong = surprises(ran, expected)
    print("\n".join([*wrong, f"{len(wrong)} surprises"]))
    return 1 if wrong else 0


def _print(results: list[Result], expected: list) -> None:
    """The table; what fails of the valid ones is listed under it."""
    print("engine     ranks   valid  passed       %   seconds")
    for c in counts(results, expected):
        share = 100 * c.n_passed / max(c.n_valid, 1)
        print(f"{c.engine:9} {c.world_size:6} {c.n_valid:7} {c.n_passed:7} {share:7.1f} {c.seconds:9.1f}")
    valid = valid_tests(results, expected)
    for r in results:
        if r.status != "passed" and (r.world_size, r.test) in valid:
            print(f"{r.engine}, {r.world_size} ranks: {r.test}: {r.reason}")


if __name__ == "__main__":
    sys.exit(main())
