"""Outputs of cells: what came from a student made safe to store, and what a verdict looks like in a notebook."""

from __future__ import annotations

from typing import Any

from hw_grader.verdict import Verdict

MAX_OUTPUTS = 100
_MAX_TEXT_CHARS = 120_000
_MAX_PICTURE_CHARS = 2_000_000
_MAX_CELL_CHARS = 5_000_000
_KINDS = ("text/plain", "text/html", "image/png", "image/svg+xml", "text/markdown", "text/latex")


def clean_outputs(outputs: Any) -> list[dict[str, Any]]:
    """Of what the student's process says a cell wrote: what has the notebook format's form, within limits."""
    cleaned: list[dict[str, Any]] = []
    room = _MAX_CELL_CHARS
    for output in outputs[:MAX_OUTPUTS] if isinstance(outputs, list) else ():
        made = _clean(output) if isinstance(output, dict) else None
        room -= len(str(made)) if made else 0
        if made and room > 0:
            cleaned.append(made)
    return cleaned


def _clean(output: dict) -> dict[str, Any] | None:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return {"output_type": "stream", "name": name, "text": _text(output.get("text"))}
    if kind == "error":
        lines = output.get("traceback")
        lines = [_text(line, 5_000) for line in lines[:80]] if isinstance(lines, list) else []
        return {"output_type": "error", "ename": _text(output.get("ename"), 200),
                "evalue": _text(output.get("evalue"), 2_000), "traceback": lines}  # fmt: skip
    if kind in ("display_data", "execute_result"):
        data = output.get("data") if isinstance(output.get("data"), dict) else {}
        kept = {k: data[k] for k in _KINDS if isinstance(data.get(k), str) and len(data[k]) <= _limit(k)}
        made = {"output_type": kind, "data": kept, "metadata": {}}
        return {**made, "execution_count": None} if kind == "execute_result" else made
    return None


def _limit(kind: str) -> int:
    return _MAX_PICTURE_CHARS if kind.startswith("image/") else _MAX_TEXT_CHARS


def _text(value: Any, limit: int = _MAX_TEXT_CHARS) -> str:
    return value[:limit] if isinstance(value, str) else ""


def verdict_outputs(verdict: Verdict) -> list[dict[str, Any]]:
    """A check cell's outputs, from which nbgrader takes the points: text is all of them, an error none."""
    if verdict.state == "pass":
        return [{"output_type": "stream", "name": "stdout", "text": verdict.shown.rstrip("\n") + "\n"}]
    name = "CheckFailed" if verdict.state == "fail" else verdict.state
    lines = f"{name}: {verdict.shown or verdict.reason}".splitlines()
    return [{"output_type": "error", "ename": name, "evalue": verdict.reason, "traceback": lines}]
