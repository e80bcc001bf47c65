"""A run's player and figures where other programs show a notebook's output: the theme is the container's own."""

from __future__ import annotations

import pytest

from hw_utils import simulate
from hw_utils.pictures.figure.figures_in_html import html_of, without_trust
from hw_utils.pictures.player import play
from hw_utils.pictures.plots import plot_space_time
from tests.pictures.test_player import SLOW, ring

# Colab: a frame whose root says the theme, whatever the system's is. https://colab.research.google.com
COLAB = '<!doctype html><html theme="{theme}"><body style="color: {ink}; background: {ground}">{output}</body></html>'
# VS Code: a webview that lets inline scripts run and fetches nothing; each script is run anew, outside its place.
VSCODE = """<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none';
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"></head>
<body class="vscode-{theme}" style="color: {ink}; background: {ground}"><div id="output"></div>
<template>{output}</template>
<script>const output = document.getElementById("output");
output.innerHTML = document.querySelector("template").innerHTML;
for (const old of [...output.getElementsByTagName("script")]) {{
  const script = document.createElement("script");
  script.text = old.textContent;
  if (old.type) script.type = old.type;
  output.appendChild(script).remove();
}}</script></body></html>"""
DARK, LIGHT = ("#e3e3e3", "#1e1e1e"), ("#1f1f1f", "#ffffff")
CONTAINERS = {
    "colab dark": (COLAB, "dark", DARK),
    "colab light": (COLAB, "light", LIGHT),
    "vscode dark": (VSCODE, "dark", DARK),
    "vscode light": (VSCODE, "light", LIGHT),
    "vscode high contrast": (VSCODE, "high-contrast", ("#ffffff", "#000000")),
    "vscode high contrast light": (VSCODE, "high-contrast-light", ("#292929", "#ffffff")),
}


@pytest.mark.browser
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_player_plays_and_reads_in_the_containers_theme(page, container):
    from axe_playwright_python.sync_playwright import Axe

    frame, theme, (ink, ground) = CONTAINERS[container]
    run = simulate(ring, 4, network=SLOW, compute="free")
    output = play(run)._repr_html_() + without_trust(html_of(plot_space_time(run.trace).figure))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.emulate_media(color_scheme="light" if ground != "#ffffff" else "dark")  # the system's, which is another one
    page.set_content(frame.format(theme=theme, ink=ink, ground=ground, output=output))
    page.get_by_role("button", name="one step back").click()
    page.get_by_role("button", name="one step back").click()
    assert page.locator(".caption").inner_text().startswith("step 4 of 6")
    assert page.locator(".still").is_hidden()
    assert errors == []
    is_dark = ground != "#ffffff"
    for words in (".hw-player .pane:visible text", ".hw-figure text"):
        level = page.locator(words).first.evaluate("e => +getComputedStyle(e).fill.match(/[0-9]+/)[0]")
        assert (level > 127) == is_dark, (words, level)
    found = Axe().run(page, options={"runOnly": ["color-contrast", "svg-img-alt", "button-name", "label"]})
    assert [v["id"] for v in found.response["violations"]] == []
