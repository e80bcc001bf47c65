"""A folder that students have filled is removed, whatever is in it."""

from __future__ import annotations

import os
import sys

from hw_grader.sandbox.bare.removal import remove_folder


def test_3000_levels_links_and_closed_doors(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    top.mkdir()
    folder = os.open(top, os.O_DIRECTORY)
    for level in range(max(3000, 2 * sys.getrecursionlimit())):
        os.mkdir("d", dir_fd=folder)
        os.symlink(outside, "link", dir_fd=folder)
        os.close(os.open(str(level), os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        inside = os.open("d", os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inside
    os.close(folder)
    for k in range(3):
        (top / str(k + 10) / "0").mkdir(parents=True)
        (top / str(k + 10)).chmod(0)
    remove_folder(str(top))
    assert not top.exists()
    assert (outside / "kept").read_text() == "kept"
