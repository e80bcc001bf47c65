"""Work of the trusted process on a student's text grows with the text's length, not with its square."""

from __future__ import annotations

import gc
import json
import time

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from hw_grader.course.grading import noticed
from hw_grader.course.similarity import functions_in
from hw_grader.notebook.restore import MAX_CELLS, MAX_MARKDOWN_CHARS, read_cells
from hw_grader.notebook.sanitize import Formulas, clean_outputs, safe_html, safe_markdown
from hw_grader.notebook.trusted_notebook import TrustedNotebook, released

NOBODYS = TrustedNotebook.__new__(TrustedNotebook)
NOBODYS.__dict__["cells"] = ()

TEXTS = {
    "drawings without an end": (lambda n: safe_html('<svg viewBox="1" ' * n), 2000),
    "drawings that never close": (lambda n: safe_html('<svg viewBox="1 1">' * n), 2000),
    "drawings without a box": (lambda n: safe_html("<svg >" * n + "</svg>"), 2000),
    "drawings in markdown": (lambda n: safe_markdown("<div>\n" + '<svg viewBox="1" ' * n), 500),
    "lists in lists": (lambda n: safe_html("<ul><li>" * n), 500),
    "elements that each paragraph has again": (lambda n: safe_html(_bold(n) + "<p>x" * n), 100),
    "attributes without an end": (lambda n: safe_html("<b a" + " a='b'" * n + "<b " * n), 5000),
    "a long dotted name": (lambda n: _noticed("# " + "hw_utils." * n), 20_000),
    "imports in one line": (lambda n: _noticed("hw_utils import " * n), 10_000),
    "a solution without an end": (lambda n: released("### BEGIN SOLUTION\n" * n, "code"), 5000),
    "hidden tests without an end": (lambda n: released("### BEGIN HIDDEN TESTS\n" * n, "markdown"), 5000),
    "formulas without an end": (lambda n: Formulas().marked("\\(" * n), 10_000),
    "openings in formulas": (lambda n: Formulas().marked("${" * n), 10_000),
    "elements around formulas": (lambda n: Formulas().marked("<pre></pre>$a<p></p>" * n), 2000),
    "many functions": (lambda n: list(functions_in("def f(): pass\n" * n)), 1000),
}


def _bold(n: int) -> str:
    return "<p>" + "".join(f"<b id={k}>" for k in range(n))


def _noticed(source: str) -> list[str]:
    return noticed(new_notebook(cells=[new_code_cell(source)]), NOBODYS)


def _cpu_s(call, n: int) -> float:
    gc.disable()  # it looks at everything that was made before
    try:
        started = time.process_time()
        call(n)
        return time.process_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize("name", TEXTS)
def test_eight_times_the_text_is_not_64_times_the_work(name):
    """The least of a few looks each; on a busy machine it takes more of them, and work that squares needs them all."""
    call, n = TEXTS[name]
    short = long = float("inf")
    for _ in range(30):
        short, long = min(short, _cpu_s(call, n)), min(long, _cpu_s(call, 8 * n))
        if long < 24 * max(short, 1e-3):
            return
    pytest.fail(f"{long:g} s for 8 times the text that takes {short:g} s")


def test_what_was_found_is_found():
    assert _noticed("from hw_utils.material import replay, collective_algorithms  # both") != []
    assert _noticed("import hw_utils.material.collective_algorithms") == [
        "cell 1 uses hw_utils's collective_algorithms, which computes what exercises ask for"
    ]
    assert _noticed("from hw_utils.threads.layer_trace import cost") == [
        "cell 1 uses hw_utils.threads.layer_trace, which no lesson shows"
    ]
    assert _noticed("from torch import distributed as d\nd.pipelining.schedules") == [
        "cell 1 uses torch's pipelining, which computes what exercises ask for"
    ]
    assert _noticed('importlib.import_module("torch.distributed." "pipelining")') != []
    assert _noticed("from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops") == [
        "cell 1 uses torch's pipelining, which computes what exercises ask for"
    ]
    assert _noticed("replay = 1\nfrom hw_utils import launch, simulate\nschedules = hw_utils.launch") == []
    source = "a\n  ### BEGIN SOLUTION\n  b\n  ### BEGIN SOLUTION\n  ### END SOLUTION\nc\n### BEGIN SOLUTION\nd"
    assert released(source, "code") == "a\n  raise NotImplementedError()\nc\n### BEGIN SOLUTION\nd"
    assert released("a\n### BEGIN HIDDEN TESTS\nb\n### END HIDDEN TESTS more\nc\n", "code") == "a\nc"
    nested = "class Ä:\n    def f(self):\n        def g(): return 'ä'\n        return g\n\nasync def h(): pass"
    assert sorted(functions_in(nested)) == sorted(
        [nested[: nested.index("\n\n")], "def f(self):\n        def g(): return 'ä'\n        return g",
         "def g(): return 'ä'", "async def h(): pass"]
    )  # fmt: skip
    drawn = safe_html('a<svg x="1" viewBox="0 0 3 4" aria-label="L"><path/></svg>b<svg>c</svg><svg viewBox="1">')
    assert drawn.startswith('a<img alt="L" src="data:image/svg+xml;base64,')
    assert drawn.count("<img") == 1
    assert "bc" in drawn


@pytest.mark.parametrize("text", ["![plot](attachment:a.png)", "> " * 5000, "\\\\(" * 100_000])
def test_a_text_that_the_renderer_cannot_take_is_shown_all_the_same(text):
    shown = safe_markdown(f"answer {text}")
    assert "answer" in shown
    assert ("<pre>" in shown) == (len(text) > 20_000)  # what takes the renderer minutes is not given to it


def test_outputs_have_room_for_a_submission_and_no_more():
    outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * 1000}] * 3
    assert len(clean_outputs(outputs)) == 3
    assert len(clean_outputs(outputs, 2500)) == 2
    assert clean_outputs(outputs, 0) == clean_outputs(outputs, -5) == []


def test_texts_that_take_minutes_to_render_are_left_out_and_it_is_said():
    notes: list[str] = []
    texts = [new_markdown_cell("*a* " * 500) for _ in range(300)]
    data = json.dumps(new_notebook(cells=[*texts, new_code_cell("answer = 1")])).encode()
    cells = read_cells(data, notes)
    assert sum(len(cell.source) for cell in cells if cell.kind == "markdown") == MAX_MARKDOWN_CHARS
    assert cells[-1].source == "answer = 1"
    assert notes == ["the texts hold 600,000 characters; 400,000 is the limit, 100 of its texts are left out"]


def test_cells_that_nobody_looks_at_are_said():
    notes: list[str] = []
    texts = [new_markdown_cell("a") for _ in range(MAX_CELLS + 5)]
    cells = read_cells(json.dumps(new_notebook(cells=texts)).encode(), notes)
    assert len(cells) == MAX_CELLS
    assert notes == ["the notebook has 2,005 cells; after the first 2,000 none is looked at"]


@pytest.mark.parametrize(
    "formula", [r"\left(" * 600 + "1" + r"\right)" * 600, "{" * 500 + "}" * 500, r"\def\a{\b\b}", r"\newcommand\a{1}"]
)
def test_formulas_that_keep_a_page_busy_stay_text(formula):
    whole = '<div class="tex2jax_ignore">'  # what MathJax leaves alone
    assert safe_markdown(f"${formula}$").startswith(whole)
    assert safe_html(f"<p>${formula}$</p>").startswith(whole)
    tex = {"output_type": "display_data", "data": {"text/latex": f"${formula}$", "text/plain": "a"}}
    (shown,) = clean_outputs([tex])
    assert [*shown["data"]] == ["text/plain"]
    assert "tex2jax_ignore" not in safe_markdown(r"the time is $\alpha + \frac{n}{\beta}$")


def _set(markdown: str, formulas: Formulas) -> int:
    return formulas.marked(safe_markdown(markdown)).count('<span class="formula">')


def test_a_text_with_forty_formulas_is_set_and_one_page_sets_no_more_than_so_many():
    text = " ".join(rf"For $N_{{{n}}}$ it is $\sum_{{i=1}}^{{{n}}} \frac{{n_i}}{{\beta_i}}$." for n in range(20))
    page = Formulas()
    assert _set(text, page) == 40
    assert _set("$a$ " * 1000, page) == 260
    assert _set("$a$ " * 1000, page) == _set(text, page) == 0
    assert "$N_{1}$" in page.marked(text)  # as it was written
    assert _set(("$" + "a+" * 400 + "$ ") * 20, Formulas()) < 20


@pytest.mark.parametrize(
    "formula",
    ["a+" * 600, "{" * 25 + "}" * 25, r"\left(" * 100 + "1" + r"\right)" * 100, r"\def\a{\b\b}", r"\newcommand\a{1}"],
)
def test_a_formula_that_keeps_a_page_busy_takes_no_other_one_along(formula):
    shown = Formulas().marked(safe_markdown(f"$a$ and ${formula}$ and $b$.\n\nThen $c$."))
    assert '<span class="formula">$a$</span> and $' in shown
    assert "$ and $</span>" not in shown
    assert '<span class="formula">$c$</span>' in shown


def test_formulas_are_found_as_mathjax_finds_them():
    found = [
        r"$x&lt;y$", r"$\text{a $b$ c}$", "$$\na\n$$", r"\(z\)", r"\[z\]", r"\begin{align*} a&amp;=b\\ \end{align*}",
        r"$a\$b$", r"\eqref{one}",
    ]  # fmt: skip
    for formula in found:
        assert Formulas().marked(f"<p>a {formula} b</p>") == f'<p>a <span class="formula">{formula}</span> b</p>'
    left = [
        "<pre>$a$</pre>",
        "<code>$a$</code>",
        '<img alt="> $a$ >" src="">',
        "$a <em>b</em> c$",
        r"\$5 and 6\$",
        "$5",
    ]
    for text in left:
        assert Formulas().marked(f"<p>{text}</p>") == f"<p>{text}</p>"
