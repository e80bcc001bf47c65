"""The formgrader in a real Jupyter server: it shows the course, and its button grades as the command does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output
from nbgrader.api import Gradebook

from hw_grader.course.trusted_verdict_step import UNSAFE
from hw_grader.notebook.sanitize import Formulas
from tests.grader.notebook.test_pipeline import NAME, NOTEBOOK, answered, cell, hand_in, tiny_course
from tools.build import build

TOKEN = "formgrader-test"
# Puts into the page what must not load or lead anywhere, and gives the directives that refused it.
MADE_OF_TEXT = """async () => {
  const refused = new Set();
  document.addEventListener("securitypolicyviolation", (event) => refused.add(event.effectiveDirective));
  document.body.insertAdjacentHTML("beforeend", `<img src="/logout"><img src="http://elsewhere.invalid/a.png">
    <p style="background: url(/logout)">a</p><iframe src="/tree"></iframe><form action="/logout"></form>
    <base href="http://elsewhere.invalid/"><object data="x.csv"></object>`);
  document.forms[document.forms.length - 1].submit();
  while (refused.size < 5) await new Promise(requestAnimationFrame);
  return [...refused].sort();
}"""
# What MathJax would make of \smash, \llap, \rule, \raise, \kern and negative spaces, in each box of a student's;
# gives which of the instructor's elements it covers, of how many that were looked at, and how often it is seen at all.
DRAWN_BY_A_FORMULA = """(boxes) => {
  const drawn = ["position: absolute; left: -500em; top: -500em", "position: fixed; left: 0; top: 0",
    "position: relative; display: inline-block; top: -90em; left: -30em", "display: block; margin: -90em -30em"];
  for (const box of document.querySelectorAll(boxes)) for (const style of drawn)
    box.insertAdjacentHTML("beforeend",
      `<span class="drawn" style="${style}; width: 1000em; height: 1000em; background: black; z-index: 9999">a</span>`);
  const at = (x, y) => document.elementFromPoint(x, y)?.closest(".drawn");
  const instructors = "input.score, textarea, button, .panel-heading, .nbgrader-label, nav a";
  const covered = [], looked_at = [];
  for (const one of document.querySelectorAll(instructors)) {
    one.scrollIntoView({block: "center"});
    const r = one.getBoundingClientRect();
    if (!r.width || one.closest(boxes)) continue;
    looked_at.push(one);
    if (at(r.x + r.width / 2, r.y + r.height / 2)) covered.push(one.className);
  }
  const seen = [...document.querySelectorAll(boxes)].filter((box) => {
    box.scrollIntoView({block: "center"});
    const r = box.getBoundingClientRect();
    return at(r.x + r.width / 2, Math.min(r.y + r.height / 2, innerHeight / 2));
  });
  return {covered, n_looked_at: looked_at.length, n_seen: seen.length};
}"""


class Server:
    """A Jupyter server in a course folder, on a port of its own choice."""

    def __init__(self, course: Path) -> None:
        private = course / "jupyter"
        environment = {
            **os.environ,
            UNSAFE: "1",
            "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
            "JUPYTER_DATA_DIR": str(private / "data"),
            "JUPYTER_CONFIG_DIR": str(private / "config"),
        }
        command = [sys.executable, "-m", "jupyter_server", "--ServerApp.port=0", "--no-browser", "--allow-root"]
        command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={course}"]
        self.process = subprocess.Popen(
            command, cwd=course, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self.url = self._read_url()
        self.drain = threading.Thread(target=self.process.stderr.read)  # a full pipe would stop it
        self.drain.start()
        self._connect()

    def _connect(self) -> None:
        """The server says its address a moment before it listens there."""
        port, ended = int(self.url.split(":")[2].split("/")[0]), threading.Event()
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                ended.wait(0.1)
        raise RuntimeError("the server does not listen: " + "".join(self.said))

    def _read_url(self) -> str:
        for line in self.process.stderr:
            self.said.append(line)
            if "http://127.0.0.1:" in line and "?token=" in line:
                return line[line.index("http://") : line.index("/?token=")].removesuffix("/tree")
        raise RuntimeError("the server ended: " + "".join(self.said))

    def ask(self, path: str, method: str = "GET") -> str:
        request = urllib.request.Request(
            f"{self.url}/formgrader{path}", method=method, data=b"" if method == "POST" else None
        )
        request.add_header("Authorization", f"token {TOKEN}")
        with urllib.request.urlopen(request, timeout=250) as answer:
            return answer.read().decode()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        self.drain.join()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = tmp_path_factory.mktemp("formgrader")
    trusted = tiny_course(course)
    hand_in(course, "reference", answered(trusted))
    hand_in(course, "empty", "")
    return course


@pytest.fixture(scope="module")
def server(course):
    server = Server(course)
    yield server
    server.close()


def test_the_formgrader_shows_releases_and_grades_the_course(course, server):
    made = json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    assert made["success"], made
    (assignment,) = json.loads(server.ask("/api/assignments"))
    assert (assignment["name"], assignment["max_score"], assignment["num_submissions"]) == (NAME, 6.5, 2)
    for student, score in (("reference", 4.5), ("empty", 0)):
        done = json.loads(server.ask(f"/api/submission/{NAME}/{student}/autograde", "POST"))
        assert done["success"], done
        submissions = json.loads(server.ask(f"/api/submissions/{NAME}"))
        (found,) = [s for s in submissions if s["student"] == student]
        assert (found["autograded"], found["score"]) == (True, score)
    assert "formgrader" in server.ask("/manage_assignments").lower()


def test_the_rubric_is_under_the_answer_and_in_no_students_page(course, server):
    json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    assert json.loads(server.ask(f"/api/submission/{NAME}/reference/autograde", "POST"))["success"]
    submissions = json.loads(server.ask(f"/api/submitted_notebooks/{NAME}/{NOTEBOOK.removesuffix('.ipynb')}"))
    (found,) = [s for s in submissions if s["student"] == "reference"]
    page = server.ask(f"/submissions/{found['id']}")
    rubric = "names a use."
    assert page.index("no student sees this") < page.index(rubric)
    assert json.loads(server.ask(f"/api/assignment/{NAME}/generate_feedback", "POST"))["success"]
    (fed_back,) = (course / "feedback" / "reference" / NAME).glob("*.html")
    assert "why_ranks" in fed_back.read_text()
    assert rubric not in fed_back.read_text()


def test_ticks_in_the_rubric_are_points_and_what_is_missing_a_comment(course, server, page):
    json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    assert json.loads(server.ask(f"/api/submission/{NAME}/reference/autograde", "POST"))["success"]
    submissions = json.loads(server.ask(f"/api/submitted_notebooks/{NAME}/{NOTEBOOK.removesuffix('.ipynb')}"))
    (found,) = [s for s in submissions if s["student"] == "reference"]
    page.set_extra_http_headers({"Authorization": f"token {TOKEN}"})
    page.goto(f"{server.url}/formgrader/submissions/{found['id']}/")
    page.locator("input.score.needs_manual_grade").wait_for()
    with page.expect_response(lambda r: "/api/grade/" in r.url and r.request.method == "PUT") as saved:
        page.get_by_label("names a use.").check()
    assert saved.value.json()["manual_score"] == 1
    with page.expect_response(lambda r: "/api/comment/" in r.url and r.request.method == "PUT") as saved:
        page.get_by_role("button", name="Put what is missing into the comment").click()
    assert saved.value.json()["manual_comment"] == "Missing:\n- 1 point names another one."


def test_nothing_that_comes_from_a_student_runs_loads_or_links_on_the_page(course, server, page):
    script = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    hand_in(course, "mallory", (course / "submitted" / "reference" / NAME / NOTEBOOK).read_text())
    folder = course / "submitted" / "mallory" / NAME
    beside = ("x.html", "x.HTML", "x.xht", "x.svg", "x.ipynb.htm")
    for name in (*beside, "data.csv"):
        (folder / name).write_text(script)
    json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    assert json.loads(server.ask(f"/api/submission/{NAME}/mallory/autograde", "POST"))["success"]
    assert not {p.name for p in (course / "autograded" / "mallory" / NAME).iterdir()} & {*beside}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        gradebook.update_or_create_student("mallory", first_name=script, last_name=script)
        number = gradebook.find_submission_notebook(NOTEBOOK.removesuffix(".ipynb"), NAME, "mallory").id

    asked: list[str] = []
    page.route("**/*", lambda route: (asked.append(route.request.url), route.continue_()))
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.set_extra_http_headers({"Authorization": f"token {TOKEN}"})
    page.goto(f"{server.url}/formgrader/submissions/{number}/")
    page.locator("input.score.needs_manual_grade").wait_for()
    assert script in page.locator(".name-shown").first.text_content()
    refused = page.evaluate(MADE_OF_TEXT)  # as if MathJax had made them of a formula
    assert refused == ["base-uri", "form-action", "frame-src", "img-src", "object-src"]
    ours = (f"{server.url}/", "https://cdnjs.cloudflare.com/ajax/libs/mathjax/2.7.7/")
    assert all(url.startswith(ours) for url in asked)
    assert not any("logout" in url for url in asked)


def test_what_a_student_wrote_neither_fills_nor_covers_the_instructors_page(course, server, page):
    hand_in(course, "eve", (course / "submitted" / "reference" / NAME / NOTEBOOK).read_text())
    json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    assert json.loads(server.ask(f"/api/submission/{NAME}/eve/autograde", "POST"))["success"]
    graded = course / "autograded" / "eve" / NAME / NOTEBOOK
    notebook = nbformat.read(graded, as_version=4)
    boxed = '<div style="position: fixed; margin: -500px">b</div><style>body { display: none }</style>'
    cell(notebook, "why_ranks").source = "$a$ " * 200 + f"\n\n{boxed}"
    cell(notebook, "hello").outputs = [
        new_output("display_data", {kind: text * 1000})
        for kind, text in (("text/html", "<p>$h$</p>"), ("text/latex", "$l$ "), ("text/markdown", "$m$ "))
    ]
    graded.chmod(0o644)
    nbformat.write(notebook, graded)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        number = gradebook.find_submission_notebook(NOTEBOOK.removesuffix(".ipynb"), NAME, "eve").id

    page.set_extra_http_headers({"Authorization": f"token {TOKEN}"})
    page.route("https://cdnjs.cloudflare.com/**", lambda route: route.abort())
    page.goto(f"{server.url}/formgrader/submissions/{number}/")
    page.locator("input.score.needs_manual_grade").wait_for()
    formulas = page.locator(".formula").all_text_contents()
    assert len(formulas) == Formulas().n_formulas
    assert {"$l$"} <= {*formulas} <= {"$l$", "$m$", "$a$"}
    answer = page.locator(".nbgrader_cell .text_cell_render")
    assert (answer.count(), answer.locator("[style], style").count()) == (1, 0)
    found = page.evaluate(DRAWN_BY_A_FORMULA, ".text_cell_render, .input_area, .output_area")
    assert found["covered"] == []
    assert found["n_looked_at"] > 10
    assert found["n_seen"] > 5  # in its own box it is


def test_the_release_of_the_formgraders_button_is_the_builders(course, server):
    json.loads(server.ask(f"/api/assignment/{NAME}/assign", "POST"))
    by_button = (course / "notebooks" / NAME / NOTEBOOK).read_bytes()
    assert build(course).written == []
    assert (course / "notebooks" / NAME / NOTEBOOK).read_bytes() == by_button
