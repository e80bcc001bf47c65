"""What bubblewrap shows of this machine."""

from __future__ import annotations

import json

import pytest

from hw_grader.sandbox import bubblewrap


@pytest.fixture
def fonts(monkeypatch, tmp_path):
    """A list of fonts such as matplotlib keeps, of what is at home or is not."""
    monkeypatch.setenv("HOME", str(tmp_path / "jürgen"))
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "matplotlib" / "fontlist-v1.json"
    path.parent.mkdir(parents=True)

    def write(folder: str) -> str:
        path.write_text(json.dumps({"ttflist": [{"fname": f"{folder}/Sans.ttf"}]}))
        return str(path)

    return write


def shown(path: str) -> list[str]:
    """Where the file is to be seen inside."""
    command = bubblewrap.command(3)
    return [command[k + 1] for k, part in enumerate(command) if part == path]


def test_matplotlib_finds_its_list_of_fonts_and_need_not_make_it(fonts):
    assert shown(fonts("/usr/share/fonts")) == ["/tmp/fontlist-v1.json"]


def test_fonts_at_home_are_nobodys_business(fonts, tmp_path):
    assert shown(fonts(f"{tmp_path}/jürgen/.fonts")) == []
