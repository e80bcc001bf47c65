"""What more than one test module stands on."""

from __future__ import annotations

import pytest

from tests.lab import CHROMIUM, FLAGS, require_chromium


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium; a module's own, since Playwright's event loop must not run beside nbclient's."""
    require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
