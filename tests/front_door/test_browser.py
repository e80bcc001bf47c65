"""A student's first hour in a real JupyterLab: set-up, a friendly failure, a right answer, a hang, an interrupt."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest

from tests.front_door.lab import NotebookPage, served

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

RELEASES = sorted(Path("notebooks").glob("*/*.ipynb"))
RIGHT = 'def hello(rank, world_size, name):\n    print(f"Rank {rank}: Hello, {name}!")\n'
WRONG = 'def hello(rank, world_size, name):\n    print(f"Rank {rank + 1}: Hello, {name}!")\n'
HANGS = "def hello(rank, world_size, name):\n    dist.recv(torch.zeros(1), (rank + 1) % world_size)\n"
LOOPS = "def hello(rank, world_size, name):\n    while True: pass\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A student's copy of the released notebooks."""
    folder = tmp_path_factory.mktemp("student")
    for release in RELEASES:
        shutil.copy(release, folder / release.name)
    return folder


@pytest.fixture(scope="module")
def lab(browser, folder):
    with served(folder) as url:
        yield url


def test_a_student_solves_hangs_and_interrupts_the_first_exercise(page, lab, folder):
    shutil.copy(folder / "hello_ranks.ipynb", folder / "mine.ipynb")  # JupyterLab saves by itself
    notebook = NotebookPage(page, lab, "mine.ipynb")
    notebook.run("# Set-up.")
    notebook.run("def hello(")
    shown = notebook.run("checks.lesson_01.hello(")
    assert "CheckFailed: hello is not written yet." in shown
    assert "Traceback" not in shown

    notebook.type_into("def hello(", RIGHT)
    notebook.run("def hello(")
    assert notebook.run("checks.lesson_01.hello(").startswith("ok: every rank says hello")

    notebook.type_into("def hello(", WRONG)
    notebook.run("def hello(")
    shown = notebook.run("checks.lesson_01.hello(")
    assert "ranks count from 0" in shown
    assert "hint 1 of exercise 1.1" in shown

    notebook.type_into("def hello(", HANGS)
    notebook.run("def hello(")
    shown = notebook.run("launch(hello, 3")
    assert "no rank can go on" in shown
    assert "dist.recv(torch.zeros(1)" in shown

    notebook.type_into("def hello(", LOOPS)
    notebook.run("def hello(")
    cell = notebook.start("launch(hello, 3")
    notebook.menu("Kernel", "Interrupt Kernel")
    cell.locator(".jp-InputPrompt", has_text="[*]").wait_for(state="detached", timeout=30_000)
    assert "KeyboardInterrupt" in notebook.output("launch(hello, 3")

    notebook.type_into("def hello(", RIGHT)
    notebook.run("def hello(")
    assert "Rank 2: Hello, Ada!" in notebook.run("launch(hello, 3")


@pytest.mark.parametrize("release", RELEASES[:: len(RELEASES) - 1], ids=lambda path: path.stem)  # first and last
def test_an_untouched_release_sets_up_and_fails_its_first_check_kindly(release, page, lab):
    notebook = NotebookPage(page, lab, release.name)
    notebook.run("# Set-up.")
    first = notebook.panel.locator(".jp-CodeCell .jp-InputArea", has_text="checks.lesson_").first
    call = first.locator(".cm-content").inner_text().splitlines()[0]
    answer = call.rpartition("(")[2].rstrip(")") or call.rpartition("(")[0].rpartition(".")[2]
    shown = notebook.run(call)
    assert "ok:" not in shown
    assert "hw_utils/" not in shown
    assert "CheckFailed" in shown or f"name '{answer}' is not defined" in shown


SMALLEST_PX = """picture => {
    const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
    const sizes = [...picture.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize));
    return scale * Math.min(...sizes);
}"""


def test_pictures_and_tables_show_in_both_themes(page, lab):
    notebook = NotebookPage(page, lab, "hello_ranks.ipynb")
    notebook.run("# Set-up.")
    notebook.run("names = [")
    for theme, width in itertools.product(("JupyterLab Light", "JupyterLab Dark"), (700, 1300)):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        require_table_and_picture(notebook, is_dark="Dark" in theme)


def require_table_and_picture(notebook, is_dark: bool) -> None:
    notebook.run("def who_am_i(")
    table = notebook.cell("def who_am_i(").locator(".jp-OutputArea-output table")
    assert table.locator("tbody tr").count() == 4
    notebook.run("plots.plot_space_time(simulate(programs.wait_comes_last")
    outputs = notebook.cell("plots.plot_space_time(simulate(programs.wait").locator(".jp-OutputArea-output")
    (drawn,) = outputs.all()  # the picture, and no line above it
    picture = drawn.get_by_role("img", name="2 ranks")
    assert picture.evaluate(SMALLEST_PX) >= 8.9
    (ink,) = {text.evaluate("text => getComputedStyle(text).fill") for text in picture.locator("text").all()}
    shades = [int(part) for part in re.findall(r"\d+", ink)[:3]]
    assert min(shades) > 180 if is_dark else max(shades) < 80, ink


def test_the_classic_notebook_runs_the_first_check(page, browser, folder):
    with served(folder, "notebook") as url:
        notebook = NotebookPage(page, url, "hello_ranks.ipynb", "notebook")
        notebook.run("# Set-up.")
        notebook.type_into("def hello(", RIGHT)
        notebook.run("def hello(")
        assert notebook.run("checks.lesson_01.hello(").startswith("ok: every rank says hello")
