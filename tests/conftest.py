"""What more than one test module stands on."""

from __future__ import annotations

import os

import pytest

from tests.front_door.lab import CHROMIUM, FLAGS, require_chromium


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
    yield page
    if directory := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{directory}/{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png")
    page.close()
