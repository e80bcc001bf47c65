"""HTML and drawings that a page cannot show in time are left out, and said to be; those of lessons are shown."""

from __future__ import annotations

import io

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from hw_grader.course.nbgrader_steps import code_of_cell, page_settings
from hw_grader.notebook.heavy_html import MOST_OPEN, is_deep
from hw_grader.notebook.sanitize import clean_outputs, safe_html, safe_markdown
from hw_utils.pictures.figure.figures_in_html import html_of, without_trust

USES = '<use href="#a{}"/>'
GROUPS = '<g id="a0"><rect width="1" height="1"/></g>' + "".join(
    f'<g id="a{k}">{USES.format(k - 1) * 10}</g>' for k in range(1, 8)
)
CLIPS = "".join(f'<clipPath id="a{k}"><rect clip-path="url(#a{k - 1})"/></clipPath>' for k in range(8))
HEAVY = {
    "groups of groups": GROUPS + USES.format(7),
    "groups under other names": (GROUPS + USES.format(7)).replace("href", "xlink:href").replace("#a", "&#35;a"),
    "clips of clips": f'{CLIPS}<rect clip-path="url(#a7)"/>',
    "clips by letters in another form": '<rect style="clip-path: u\\72l(#a)"/>',
    "clips by a style sheet": "<style>rect { clip-path: url(#a) }</style><rect/>",
    "long paths, often": '<path id="a" d="{}"/>'.format("M0 0" * 5000) + '<use href="#a"/>' * 1000,
    "filters": '<filter id="f"><feTurbulence numOctaves="255"/></filter>',
    "blur": '<rect style="filter: blur(9px)"/>',
    "pages in it": "<foreignObject><p>a</p></foreignObject>",
    "what moves": '<rect><animateTransform repeatCount="indefinite"/></rect>',
    "many groups in one another": "<g>" * 500 + "</g>" * 500,
    "no XML": "<rect",
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_drawing_that_keeps_a_browser_busy_is_left_out(name):
    shown = safe_html(f'<p>a<svg viewBox="0 0 9 9" aria-label="L">{HEAVY[name]}</svg>b</p>')
    assert shown == "<p>a<em>[a drawing with many parts made of parts is left out] L</em>b</p>"


def drawn() -> Figure:
    figure = Figure()
    (a, b), (c, d) = figure.subplots(2, 2)
    a.scatter(range(1000), range(1000))
    b.imshow([[1, 2], [3, 4]])
    c.bar(range(9), range(9), hatch="//", label="bars")
    c.legend()
    d.errorbar(range(9), range(9), yerr=1, marker="o")
    return figure


@pytest.mark.parametrize("fonts", ["none", "path"])
def test_drawings_of_matplotlib_and_of_lessons_are_shown(fonts):
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": fonts}):
        drawn().savefig(file, format="svg")
    svg = file.getvalue()
    for html in (svg[svg.index("<svg") :], html_of(drawn()), without_trust(html_of(drawn()))):
        assert 'src="data:image/svg+xml;base64,' in safe_html(html)


OPEN = {
    "never closed": "<div>" * 50,
    "closed by another": "<div></b>" * 50,
    "closed out of turn": "<b id=1><table><tr><td></b></td></tr></table>" * 20,
    "closed in an attribute": '<b title="></b>">' * 50,
    "closed in the name of an attribute": '<b x"y="z></b>">' * 50,
    "closed in a comment": "<b id=1><!--></b>-->" * 50,
    "closed in itself": "<b/>" * 50,
}


@pytest.mark.parametrize("name", OPEN)
def test_elements_that_stay_open_are_left_out_and_a_text_is_shown_as_it_was_written(name):
    assert is_deep(OPEN[name])
    assert safe_html(OPEN[name]).startswith("<p>[HTML with many elements in one another")
    assert safe_markdown(f"answer\n\n{OPEN[name]}").startswith("<pre>answer")
    said = {"output_type": "display_data", "data": {"text/html": OPEN[name], "text/plain": "a"}}
    assert clean_outputs([said])[0]["data"]["text/plain"] == "a"


def test_long_tables_lists_and_texts_are_shown():
    rows = "".join(f"<tr><td style='a' rowspan=2>{k}<br/></td></tr>" for k in range(1000))
    table = f"<table><tbody>{rows}</tbody></table>"
    assert safe_html(table).count("<td>") == 1000
    assert safe_html("<p>a" * (MOST_OPEN - 1)).count("<p>") == MOST_OPEN - 1
    assert safe_markdown("- a\n" * 500).count("<li>") == 500
    assert safe_markdown("**a** `b` <br> 1 < 2\n\n" * 500).count("<strong>") == 500


def test_code_is_coloured_as_python_and_no_more_of_a_page_than_takes_seconds():
    assert page_settings()["filters"]["highlight_code"] is code_of_cell
    page = {"resources": {}}
    assert code_of_cell(page, "%%perl\ndef f(): pass <b>").count('<span class="k">') == 2  # Perl has neither
    plain = '<div class="highlight"><pre>'
    assert code_of_cell(page, "a." * 400_000).startswith(plain)
    coloured = [not code_of_cell(page, "a.\n" * 6000).startswith(plain) for _ in range(20)]
    assert coloured == [True] * 11 + [False] * 9
    assert code_of_cell(page, "<script>" * 10_000) == f"{plain}{'&lt;script&gt;' * 10_000}</pre></div>"
