"""Exported notebooks as a screen reader meets them: axe finds nothing serious in what is ours."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SOLUTIONS = sorted(Path("solutions").glob("*/*.ipynb"))
# nbconvert's own theme: grey prompts and the colours of its syntax highlighting
THEIRS = {"exclude": [[".jp-InputPrompt"], [".jp-OutputPrompt"], [".highlight"]]}


def findings(browser, notebook) -> list[str]:
    """What axe calls serious or worse, with the first element that it names."""
    from axe_playwright_python.sync_playwright import Axe

    logging.getLogger("traitlets").setLevel(logging.ERROR)
    page = browser.new_page()
    page.set_content(HTMLExporter().from_notebook_node(notebook)[0])
    found = Axe().run(page, context=THEIRS).response["violations"]
    page.close()
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_a_notebook_has_no_serious_finding(browser, path):
    assert findings(browser, nbformat.read(str(path), 4)) == []


@pytest.fixture(scope="module")
def executed():
    """The first solution with its outputs."""
    notebook = nbformat.read(str(SOLUTIONS[0]), 4)
    NotebookClient(notebook, kernel_name="python3", timeout=300).execute()
    return notebook


@pytest.mark.slow
def test_the_results_of_a_run_have_no_serious_finding(browser, executed):
    assert findings(browser, executed) == []


@pytest.mark.slow
def test_every_picture_of_a_run_has_a_text_of_its_own(executed):
    shown = [o.get("data", {}).get("text/html", "") for cell in executed.cells for o in cell.get("outputs", [])]
    labels = [label for text in shown for label in re.findall(r'<img alt="([^"]*)"', text)]
    assert len(labels) >= 5
    assert all(len(label) > 40 for label in labels)
