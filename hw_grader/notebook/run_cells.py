"""Runs a submission's cells, in order, in one sandboxed process, and takes the answers that the checks ask for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode

from hw_grader.driving.driver_processes import Stop, why_stopped
from hw_grader.notebook.sanitize import clean_outputs, n_bytes_of
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook
from hw_grader.notebook.unused_cells.unused import NOTE
from hw_grader.sandbox.messages import WireError
from hw_grader.sandbox.sandbox import Process, Sandbox

INTERRUPT_S = 10.0  # until a cell has ended what it had started, on a machine that is busy with others
# Of one submission, all of which the processes that grade a class may have to hold at once:
MAX_OUTPUT_BYTES = 10_000_000  # of all cells together: some hundred pictures
MAX_ANSWER_BYTES = 256 * 2**20  # of the answers to all checks; those that are equal count once


@dataclass
class Ran:
    """What came out of the student's cells."""

    answers: dict[tuple[str, tuple[str, ...]], list[Any]] = field(default_factory=dict)  # (check, names) -> blobs
    missing: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    sources: dict[str, list] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stop: Stop | None = None
    seconds: float = 0.0
    n_output_bytes: int = 0
    peak_bytes: int = 0


def run_cells(
    notebook: NotebookNode,
    trusted: TrustedNotebook,
    sandbox: Sandbox,
    times: TimeLimits,
    left_out: frozenset[int],
    deadline: float,
) -> Ran:
    """Runs the cells in order, and takes the answers where their check stands and again at the end."""
    ran, marked = Ran(), trusted.marked
    wanted: list[tuple[str, tuple[str, ...]]] = []
    with sandbox.start("cells") as process:
        for place, node in enumerate(notebook.cells):
            cell = marked.get(node.metadata.get("nbgrader", {}).get("grade_id", ""))
            if cell is not None and cell.is_check:
                wanted += [
                    (cell.grade_id, call.names) for call in cell.calls if (cell.grade_id, call.names) not in wanted
                ]
                for key in wanted:
                    if key[0] == cell.grade_id:
                        _take_answer(process, key, ran, deadline)
            elif place in left_out:
                ran.outputs[place] = [{"output_type": "stream", "name": "stdout", "text": NOTE + "\n"}]
            elif node.cell_type == "code" and ran.stop is None and node.source.strip():
                if time.monotonic() < deadline:
                    _run_cell(process, place, node.source, ran, times, deadline)
                else:
                    _leave(place, ran, times)
        for key in wanted:
            _take_answer(process, key, ran, deadline)
        ended = process.end()
    ran.peak_bytes = ended.peak_bytes
    return ran


def _run_cell(process: Process, place: int, source: str, ran: Ran, times: TimeLimits, deadline: float) -> None:
    limit_s = max(0.1, min(times.cell_s, deadline - time.monotonic()))
    started = time.monotonic()
    try:
        process.wire.send({"run": source}, timeout_s=limit_s)
        reply = _reply_or_interrupt(process, place, limit_s, ran)
    except (EOFError, TimeoutError, WireError) as error:
        ran.stop = why_stopped(process, error, f"cell {place + 1}", limit_s)
        note = {"output_type": "error", "ename": "Stopped", "evalue": ran.stop.reason, "traceback": [ran.stop.reason]}
        ran.outputs[place] = [note]
        return
    finally:
        ran.seconds += time.monotonic() - started
    room = MAX_OUTPUT_BYTES - ran.n_output_bytes
    ran.outputs[place] = clean_outputs(reply.get("outputs"), room)
    shown = n_bytes_of(reply.get("outputs"))
    if room > 0 and shown > room:
        ran.notes.append(f"cells show more than {MAX_OUTPUT_BYTES:,} bytes: cut in cell {place + 1}")
    ran.n_output_bytes += shown
    file, count = reply.get("file"), reply.get("count")
    if isinstance(file, str) and len(file) < 300 and type(count) is int:
        ran.sources[file] = [count, source]


def _leave(place: int, ran: Ran, times: TimeLimits) -> None:
    """A cell that comes after the submission's time: what was defined before it stays."""
    said = f"not run: the submission's {times.total_s:.0f} s were over"
    if not any(said in note for note in ran.notes):
        ran.notes.append(f"cell {place + 1} and those after it were {said}")
    ran.outputs[place] = [{"output_type": "stream", "name": "stderr", "text": said + "\n"}]


def _reply_or_interrupt(process: Process, place: int, limit_s: float, ran: Ran) -> dict:
    try:
        return process.wire.receive(limit_s)[0]
    except TimeoutError:
        process.interrupt()
        reply = process.wire.receive(INTERRUPT_S)[0]
        ran.notes.append(f"cell {place + 1} was stopped after {limit_s:.0f} s")
        return reply


def _take_answer(process: Process, key: tuple[str, tuple[str, ...]], ran: Ran, deadline: float) -> None:
    """Each has some seconds, and after the submission's time all that are left have them together."""
    if ran.stop is not None:
        return
    limit_s = max(0.1, min(INTERRUPT_S, deadline + INTERRUPT_S - time.monotonic()))
    try:
        process.wire.send({"answers": list(key[1])})
        reply, blob = process.wire.receive(limit_s)
    except (EOFError, TimeoutError, WireError) as error:
        ran.stop = why_stopped(process, error, "handing over " + ", ".join(key[1]), limit_s)
        return
    if "pickled" in reply:
        others = [one for of_one in ran.answers.values() for one in of_one]
        blob = next((one for one in others if one == blob), blob)
        n_bytes = sum(len(one) for one in {id(one): one for one in [*others, blob]}.values())
        if n_bytes > MAX_ANSWER_BYTES:
            ran.stop = Stop("limit", f"the answers hold more than {MAX_ANSWER_BYTES // 2**20} MiB together")
        elif blob not in ran.answers.get(key, []):
            ran.answers.setdefault(key, []).append(blob)
    elif "missing" in reply:
        ran.missing[key] = f"{str(reply['missing'])[:500]} is not defined"
    else:
        ran.missing[key] = f"the answer cannot leave the notebook: {str(reply.get('unpicklable'))[:500]}"
