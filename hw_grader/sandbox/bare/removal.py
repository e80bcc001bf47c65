"""Removes files that students' code has made, whatever it has made of them. No link is followed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat

OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")  # where every user may write
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW


def remove_folder(path: str, dir_fd: int | None = None) -> None:
    """Removes a folder whatever students have put into it: nested ones come up to its own level, one by one.

    shutil.rmtree calls itself for each level, and holds a file descriptor a level.

    Raises:
        OSError: something cannot be removed.
    """
    top = _opened(path, dir_fd)
    try:
        count = itertools.count()
        while names := _clear(top):
            for name in names:
                inside = _opened(name, top)
                try:
                    for deeper in _clear(inside):
                        os.close(_opened(deeper, inside))
                        free = next(n for n in map(str, count) if n not in names)
                        os.rename(deeper, free, src_dir_fd=inside, dst_dir_fd=top)
                finally:
                    os.close(inside)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path, dir_fd=dir_fd)


def _opened(path: str, dir_fd: int | None) -> int:
    """A folder, open to its owner alone from now on; whatever its mode was."""
    found = os.open(path, os.O_PATH | _FOLDER, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)  # by its name, a link in its place would be followed
        return os.open(".", _FOLDER, dir_fd=found)
    finally:
        os.close(found)


def _clear(folder: int) -> set[str]:
    """Removes what is no folder; the names of those."""
    with os.scandir(folder) as entries:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    for name in (name for name, is_folder in found.items() if not is_folder):
        os.unlink(name, dir_fd=folder)
    return {name for name, is_folder in found.items() if is_folder}


def remove_of_user(uid: int, folders: tuple[str, ...] = OPEN_FOLDERS) -> None:
    """Removes what a user, of whom no process is left, owns where every user may write."""
    for path in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # not on this machine
            _remove_of_user(uid, path, None)


def _remove_of_user(uid: int, path: str, dir_fd: int | None) -> None:
    folder = os.open(path, _FOLDER, dir_fd=dir_fd)
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # others, too, make and remove things here
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                is_folder = stat.S_ISDIR(about.st_mode)
                if about.st_uid == uid:
                    remove_folder(name, folder) if is_folder else os.unlink(name, dir_fd=folder)
                elif is_folder and about.st_uid == os.geteuid() and about.st_mode & stat.S_IWOTH:
                    _remove_of_user(uid, name, folder)
    finally:
        os.close(folder)
