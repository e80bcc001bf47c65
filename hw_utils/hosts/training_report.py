"""One self-contained HTML file of training runs: settings, tables, charts, losses, the student's written answers.

    report.save("runs", "all_reduce", run, job.settings())     # in a notebook, after each run
    report.write("runs", "report.html", notebook="data_parallel.ipynb")

`python -m hw_utils report runs --notebook data_parallel.ipynb -o report.html` does the second from a shell; runs of
real hosts (`hw_utils.hosts.torchrun`) are found in the same folder.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hw_utils.core.bytes_over_time import Profile, profile_of, profile_of_samples
from hw_utils.core.run_result import Run
from hw_utils.pictures import lesson_04, plots
from hw_utils.pictures.figure import bytes_text

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
       background: #ffffff }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; font-weight: 600 }
th, td { border: 1px solid #bbbbbb; padding: .3rem .6rem; text-align: right } th[scope=row] { text-align: left }
img { max-width: 100% } blockquote { white-space: pre-wrap; border-left: 4px solid #0072b2; margin: 1rem 0;
       padding: .2rem 1rem; background: #f4f8fb }
"""


@dataclass(frozen=True)
class Saved:
    """One run as it stands in the folder, whether it came from a notebook or from real hosts."""

    name: str
    settings: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]  # one a rank
    where: str  # "real processes", "virtual cluster", "4 hosts"
    sent_bytes: Sequence[float]  # of each rank, whole run
    received_bytes: Sequence[float]
    profile: Profile | None


def save(folder: str | os.PathLike, name: str, run: Run, settings: Mapping[str, Any] | None = None) -> Path:
    """Writes the run to folder/name/run.json, where `write` finds it."""
    path = Path(folder) / name / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = profile_of(run.trace)
    received = np.sum(profile.received_Bps * np.diff(profile.times_s), axis=1)
    facts = {
        "settings": dict(settings or {}),
        "results": list(run.results),
        "where": "real processes" if run.clock == "wall" else "virtual cluster",
        "sent_bytes": [run.trace.bytes_sent(rank) for rank in range(len(run))],
        "received_bytes": received.tolist(),
        "profile": [profile.times_s.tolist(), profile.sent_Bps.tolist(), profile.received_Bps.tolist()],
    }
    path.write_text(json.dumps(facts, default=repr), encoding="utf-8")
    return path


def load(folder: str | os.PathLike) -> list[Saved]:
    """Every run in the folder, in the order in which they were saved.

    Raises:
        ValueError: there is none, or a file in it is not a run.
    """
    found = [p for p in Path(folder).glob("*/*.json") if p.name in ("run.json", "rank_0.json")]
    if not found:
        raise ValueError(f"there are no runs in {folder}: save them first, with report.save or an exported script")
    return [_load(path) for path in sorted(found, key=lambda p: (p.stat().st_mtime, p.parent.name))]


def _load(path: Path) -> Saved:
    try:
        if path.name == "run.json":
            facts = json.loads(path.read_text(encoding="utf-8"))
            profile = Profile(*map(np.asarray, facts.pop("profile")))
            return Saved(path.parent.name, profile=profile, **facts)
        return _of_hosts(path.parent)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a saved run: {error}") from None


def _of_hosts(folder: Path) -> Saved:
    files = sorted(folder.glob("rank_*.json"), key=lambda p: int(p.stem.partition("_")[2]))
    ranks = [json.loads(p.read_text(encoding="utf-8")) for p in files]
    first, last = ([r["counters"][i] for r in ranks] for i in (0, -1))
    sent, received = ([b[way] - a[way] for a, b in zip(first, last)] for way in (1, 2))
    where = f"{len(ranks)} of {ranks[0]['world_size']} hosts" if len(ranks) < ranks[0]["world_size"] else "hosts"
    profile = profile_of_samples([r["counters"] for r in ranks])
    return Saved(folder.name, ranks[0]["settings"], [r["result"] for r in ranks], where, sent, received, profile)


def write(folder: str | os.PathLike, path: str | os.PathLike, *, notebook: str | os.PathLike | None = None) -> Path:
    """Writes the report of all runs in `folder` to `path`, with the written answers of `notebook`, and returns it."""
    runs = load(folder)
    parts = [
        "<h1>Training runs</h1>",
        _comparison(runs),
        _chart(lambda ax: lesson_04.plot_methods(_seconds(runs), ax)),
        _chart(lambda ax: lesson_04.plot_losses({run.name: mean_losses(run) for run in runs if mean_losses(run)}, ax)),
        *(_section(run) for run in runs),
        _answers(notebook) if notebook is not None else "",
    ]
    path = Path(path)
    path.write_text(_page("Training runs", parts), encoding="utf-8")
    return path


def write_run(run: Run, path: str | os.PathLike, command: str, lines: Sequence[str] = ()) -> Path:
    """Writes a page about one run of a script to `path` and returns it: messages, bytes, when, what was printed.

    lines: said of the whole run. If it kept memory, the page has each rank's peak by owner.
    """
    profile = profile_of(run.trace)
    received = np.sum(profile.received_Bps * np.diff(profile.times_s), axis=1)
    rows = [
        [str(r), f"{run.trace.messages_sent(r):,}", bytes_text(run.trace.bytes_sent(r)), bytes_text(received[r])]
        for r in range(len(run))
    ]
    calls = [[name, f"{n:,}"] for name, n in sorted(run.trace.calls.items())]
    parts = [
        f"<h1>{html.escape(command)}</h1><p>{html.escape(run.summary())}</p>",
        *(f"<p>{html.escape(line)}</p>" for line in lines),
        _table("What each rank sent", ["rank", "messages", "sent", "received"], rows),
        *([run.kept_memory._repr_html_()] if run.kept_memory is not None else []),
        _table("Calls, all ranks together", ["call", "how often"], calls),
        *([_chart(lambda ax: plots.plot_timeline(run.trace, ax, end_s=run.seconds))] if calls else []),
        *([_chart(lambda ax: lesson_04.plot_profile(profile, ax))] if calls else []),
        "<h2>What the ranks printed</h2>",
        *(
            f"<details{'' if rank else ' open'}><summary>rank {rank}</summary><pre>{html.escape(text)}</pre></details>"
            for rank, text in enumerate(run.output)
        ),
    ]
    path = Path(path)
    path.write_text(_page(os.path.basename(command.split(" ")[0]), parts), encoding="utf-8")
    return path


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(p for p in parts if p) + "\n</body></html>\n"
    )


def mean_losses(run: Saved) -> list[float]:
    """The loss of the total batch at each iteration."""
    each = [result["losses"] for result in run.results if isinstance(result, Mapping) and result.get("losses")]
    return np.mean(each, axis=0).tolist() if each else []


def _seconds(runs: Sequence[Saved]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        if isinstance(_first(run).get("iteration_s"), int | float):
            found.setdefault(run.where, {})[run.name] = run.results[0]["iteration_s"]
    return found


def _first(run: Saved) -> Mapping[str, Any]:
    return run.results[0] if run.results and isinstance(run.results[0], Mapping) else {}


def _comparison(runs: Sequence[Saved]) -> str:
    rows = []
    for run in runs:
        first, n = _first(run), len(mean_losses(run))
        each = f"{run.sent_bytes[0] / n / 1e6:.1f}" if n else ""
        rows.append([
            run.name, run.where, str(len(run.results)), _number(first.get("iteration_s"), ".3f"), each,
            _number(first.get("test_loss"), ".3f"), _number(first.get("accuracy"), ".1%"),
        ])  # fmt: skip
    head = ["run", "on", "ranks", "time an iteration [s]", "sent by rank 0 an iteration [MB]", "test loss", "accuracy"]
    return _table("The runs beside each other", head, rows)


def _section(run: Saved) -> str:
    settings = _table("Settings", ["setting", "value"], [[str(k), str(v)] for k, v in run.settings.items()])
    rows = [
        [str(rank), bytes_text(sent), bytes_text(received), _number(_of(result, "test_loss"), ".4f")]
        for rank, (sent, received, result) in enumerate(zip(run.sent_bytes, run.received_bytes, run.results))
    ]
    ranks = _table("Ranks", ["rank", "sent", "received", "test loss"], rows)
    chart = _chart(lambda ax: lesson_04.plot_profile(run.profile, ax)) if run.profile is not None else ""
    return f"<h2>{html.escape(run.name)} ({html.escape(run.where)})</h2>{settings}{ranks}{chart}"


def _of(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else None


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else ""


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(_row(row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>'


def _chart(draw) -> str:
    figure = Figure(figsize=(8, 4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    draw(figure.add_subplot())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    text = html.escape(" ".join(getattr(figure, "alt_texts", [])))
    return f'<p><img alt="{text}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"></p>'


def answers_of(notebook: str | os.PathLike) -> list[tuple[str, str]]:
    """(name, text) of every cell that a student answers in words."""
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    found = []
    for cell in cells:
        marks = cell.get("metadata", {}).get("nbgrader", {})
        if cell["cell_type"] == "markdown" and marks.get("solution"):
            found.append((str(marks.get("grade_id", "?")), "".join(cell["source"])))
    return found


def _answers(notebook: str | os.PathLike) -> str:
    parts = [f"<h3>{html.escape(n)}</h3><blockquote>{html.escape(t)}</blockquote>" for n, t in answers_of(notebook)]
    return "<h2>Written answers</h2>" + "".join(parts) if parts else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", help="the folder of saved runs")
    parser.add_argument("--notebook", help="the notebook whose written answers belong in the report")
    parser.add_argument("-o", "--output", default="report.html", help="the file to write (default: report.html)")


def main(arguments: argparse.Namespace) -> int:
    try:
        print(write(arguments.runs, arguments.output, notebook=arguments.notebook))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
