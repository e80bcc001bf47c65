"""A real JupyterLab (or Notebook) in Debian's chromium, and a notebook in it: what the browser tests stand on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-component-update", "--disable-quic", "--disable-dev-shm-usage"]
START_S, CELL_MS = 120, 120_000
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/completer-extension/manager": {"autoCompletion": False},
    "@jupyterlab/codemirror-extension/plugin": {
        "defaultConfig": {"autoClosingBrackets": False, "smartIndent": False}  # typed text stays as it is typed
    },
}


def require_chromium() -> None:
    """Skips where there is no chromium; with CI=true that is a failure."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing: apt-get install chromium")
        pytest.skip("chromium is not installed")


@contextmanager
def served(folder: Path, app: str = "lab"):
    """The address of a Jupyter server on a free port, whose root is `folder`; `app` is "lab" or "notebook"."""
    home = folder / ".jupyter-home"
    write_settings(home / "settings")
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", f"jupyter{'lab' if app == 'lab' else '_server'}", "--no-browser", "--allow-root"]
    if app == "notebook":
        command = [sys.executable, "-m", "notebook", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=t"]
    command += ["--LabApp.expose_app_in_browser=True"] if app == "lab" else []
    with open(folder / f"{app}.log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield _address(home / "runtime", server)
        finally:
            server.terminate()
            server.wait()


def write_settings(folder: Path) -> None:
    for name, values in SETTINGS.items():
        package, _, plugin = name.rpartition("/")
        path = folder / package / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _address(runtime: Path, server: subprocess.Popen) -> str:
    """Where the server listens, once it answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        for file in runtime.glob("jpserver-*.json"):
            try:
                url = json.loads(file.read_text())["url"]
                urllib.request.urlopen(f"{url}api/status?token=t").close()
                return url
            except (json.JSONDecodeError, urllib.error.URLError):
                break
        os.sched_yield()
    raise TimeoutError(f"no Jupyter server within {START_S} s")


class NotebookPage:
    """One open notebook; cells are found by a text that they hold."""

    def __init__(self, page, url: str, path: str, app: str = "lab") -> None:
        self.page = page
        where = f"lab/tree/{path}?reset&" if app == "lab" else f"notebooks/{path}?"  # no tabs of an earlier visit
        page.goto(f"{url}{where}token=t", timeout=CELL_MS)
        self.panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.panel.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=CELL_MS)
        self._wait_for_kernel(url, path)

    def _wait_for_kernel(self, url: str, path: str) -> None:
        """Until the page is connected to an idle kernel: a cell that is run earlier asks for one in a dialog."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{url}api/sessions?token=t") as answer:
                kernels = [s["kernel"] for s in json.load(answer) if s["path"] == path]
            if any(k["connections"] and k["execution_state"] == "idle" for k in kernels):
                self.page.locator("[data-status=idle]").first.wait_for(state="attached", timeout=CELL_MS)
                return
            self.page.wait_for_timeout(50)
        raise TimeoutError(f"no kernel for {path} within {START_S} s")

    def cell(self, text: str):
        """The first code cell whose source holds `text`."""
        inputs = self.panel.locator(".jp-CodeCell").filter(has=self.page.locator(".jp-InputArea", has_text=text))
        return inputs.first

    def run(self, text: str):
        """Runs a cell and gives back what it shows."""
        cell = self.start(text)
        cell.locator(".jp-InputPrompt", has_text="[*]").wait_for(state="detached", timeout=CELL_MS)
        return self.output(text)

    def start(self, text: str):
        cell = self.cell(text)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        cell.locator(".jp-InputPrompt", has_text="[").wait_for(timeout=CELL_MS)
        return cell

    def type_into(self, text: str, source: str) -> None:
        """Replaces a cell's source as a student would: select all, type."""
        self.cell(text).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)

    def output(self, text: str) -> str:
        return "\n".join(self.cell(text).locator(".jp-OutputArea-output").all_inner_texts())

    def menu(self, *names: str) -> None:
        """Chooses an entry of the menu bar, as ("Kernel", "Interrupt Kernel")."""
        self.page.locator(".lm-MenuBar-item", has_text=names[0]).first.click()
        self.page.locator(".lm-Menu-item", has_text=names[1]).first.click()

    def picture(self, path: Path) -> None:
        self.page.screenshot(path=str(path))
