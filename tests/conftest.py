"""What more than one test module stands on."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from hw_utils.processes.copy_on_write import no_collections
from tests.front_door.lab import CELL_MS, CHROMIUM, FLAGS, require_chromium

_LINES = 40  # of a failure's text, when it happens; the whole text comes at the end


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting thousands of tests makes no garbage; to look for it took a third of the time.

    What has come of it stays, and no later collection looks at it again: that was a tenth of the time of all tests.
    """
    with no_collections():
        found = yield
    gc.freeze()
    return found


@pytest.hookimpl(trylast=True)  # when there is a terminal to write to
def pytest_configure(config):
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


class FailuresAtOnce:
    """What has failed is told when it fails: whoever ends the run before it is over has seen which tests, and why."""

    def __init__(self, terminal) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.terminal.write_line(f"\n{report.nodeid} failed ({report.when}, {report.duration:.0f} s)")
            self.terminal.write_line("\n".join(report.longreprtext.splitlines()[-_LINES:]))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`made_once("course", make)`: the folder that `make(folder)` has filled, once for all test processes.

    What costs minutes is made by the first process that asks; the others wait for it, and fail as it failed.
    """
    of_all = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        of_all = of_all.parent

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, made, failed = (of_all / f"{name}{end}" for end in ("", ".made", ".failed"))
        with FileLock(of_all / f"{name}.lock"):
            if failed.exists():
                pytest.fail(f"another test process could not make {name}: {failed.read_text()}")
            if not made.exists():
                folder.mkdir()
                try:
                    make(folder)
                except BaseException as error:
                    failed.write_text(repr(error))
                    raise
                made.touch()
        return folder

    return once


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium; a module's own, since Playwright's event loop must not run beside nbclient's."""
    require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A page of its own; with SCREENSHOTS=folder it leaves a picture of how it looks at the end."""
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(CELL_MS)  # the usual 30 s are over on a busy machine before a page has come
    yield page
    if directory := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{directory}/{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png")
    page.close()
