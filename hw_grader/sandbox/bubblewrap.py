"""How the warm parent is started: bubblewrap's command line, what it shows of this machine, and the environment.

Inside there is a read-only system, this Python and `hw_utils`; no network, no home, no course folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = (
    "__init__", *(f"sandbox/{n}" for n in ("__init__", "messages", "lockdown", "jail_starter", "warm_parents")),
    *(f"sandbox/{n}" for n in ("call_filter", "changed_pages", "jailed_process", "memory_in_use", "no_checks")),
    *(f"sandbox/bare/{n}" for n in ("__init__", "jails", "removal")),
    "driving/__init__", *(f"driving/roles/{n}" for n in ("__init__", "cells", "answers", "drive", "judge")),
    *(f"driving/{n}" for n in ("answer_proxy", "answer_call", "forwarded_calls", "process_of_each_rank")),
    *(f"driving/{n}" for n in ("busy_calls", "opened_answers", "remote_process_group")),
    *(f"driving/marshalling/{n}" for n in ("__init__", "packed_values", "call_channel", "given_arguments")),
    *(f"driving/marshalling/{n}" for n in ("lent_objects", "model_and_optimizer_states", "passes_elsewhere")),
    *(f"driving/marshalling/{n}" for n in ("tensor_lifetimes", "lent_memory", "exceptions")),
)  # fmt: skip
NOBODYS_UID = 999_999  # who has what no student may read where there are no walls
_FIRST_UID = 1_000_000  # as root, each sandbox is a user that nobody else is
_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL", "CHOWN", "FOWNER", "DAC_OVERRIDE",
                 "SYS_PTRACE")  # fmt: skip
_NO_COLLECTIONS = "import gc, sys; gc.disable()"  # until all is imported


def command(control_fd: int) -> list[str]:
    """bubblewrap's command line."""
    root = os.geteuid() == 0
    uid = str(_FIRST_UID + os.getpid()) if root else "-"
    start = f"{_NO_COLLECTIONS}; sys.path.insert(0, '/hw'); from hw_grader.sandbox.warm_parents import main; main()"
    return [
        "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        *([] if root else ["--unshare-user", "--uid", "0", "--gid", "0"]),
        *(option for name in _CAPABILITIES for option in ("--cap-add", f"CAP_{name}")),
        "--die-with-parent", "--new-session", "--hostname", "localhost",
        *_readable_parents([*_system(), *_course(), *_fonts()]), *_environment(),
        "--remount-ro", "/", "--chdir", "/",
        sys.executable, "-I", "-c", start, str(control_fd), uid,
    ]  # fmt: skip


def bare_command(control_fd: int, folder: str) -> list[str]:
    """The warm parent without bubblewrap, for `walls=False`.

    As root, what runs a student's code is another user, in each jail, if that one can read this Python; it has no
    rights in any case. The folder stays root's.
    """
    needed = (Path(sys.prefix), Path(sys.base_prefix), PACKAGE, package_folder())
    is_root = os.geteuid() == 0 and all(_is_open_to_all(path) for path in needed)
    uid = str(_FIRST_UID) if is_root else "-"
    if is_root:
        os.chmod(folder, 0o711)
    start = (
        f"{_NO_COLLECTIONS}; sys.path[:0] = [{str(PACKAGE.parent)!r}, {str(package_folder().parent)!r}]; "
        "from hw_grader.sandbox.warm_parents import main; main()"
    )
    values = {**_VALUES, "HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder}
    return ["env", "-i", *(f"{k}={v}" for k, v in values.items()), sys.executable, "-I", "-c", start,
            str(control_fd), uid, folder]  # fmt: skip


def _is_open_to_all(path: Path) -> bool:
    """Whether every user may go into the folder."""
    return all(place.stat().st_mode & 0o001 for place in (path.resolve(), *path.resolve().parents))


def _system() -> list[str]:
    """The operating system and this Python, read-only."""
    options = [
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/scratch", "--dir", "/scratch/.home",
        "--perms", "0711", "--size", str(2**20), "--tmpfs", "/meet", "--ro-bind", "/usr", "/usr",
        "--ro-bind-try", "/sys/devices/system/cpu", "/sys/devices/system/cpu",  # torch looks there, once a process
    ]  # fmt: skip
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for name in ("ld.so.cache", "alternatives", "fonts", "localtime", "mime.types", "hosts", "nsswitch.conf"):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for prefix in sorted({sys.base_prefix, sys.prefix, sys.base_exec_prefix}):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            options += ["--ro-bind", prefix, prefix]
    return options


def package_folder() -> Path:
    """Where hw_utils lies; it is not imported here, which would import torch."""
    return Path(importlib.util.find_spec("hw_utils").origin).resolve().parent


def _course() -> list[str]:
    """`hw_utils` and the handful of our own files that run inside; nothing else of the course."""
    options = ["--ro-bind", str(package_folder()), "/hw/hw_utils"]
    for name in INSIDE:
        options += ["--ro-bind", str(PACKAGE / f"{name}.py"), f"/hw/hw_grader/{name}.py"]
    return options


def _fonts() -> list[str]:
    """matplotlib's lists of the machine's fonts, which take it a second to make; none that names what is at home."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matplotlib"
    lists = sorted(Path(os.environ.get("MPLCONFIGDIR") or caches).glob("fontlist-*.json"))
    at_home = json.dumps(f"{Path.home()}/")[:-1].encode()  # as such a list writes it
    shown = [path for path in lists if at_home not in path.read_bytes()]
    return [part for path in shown for part in ("--ro-bind", str(path), f"{_VALUES['MPLCONFIGDIR']}/{path.name}")]


def _readable_parents(options: list[str]) -> list[str]:
    """The options after those that make each mount point's parents: bubblewrap's own are closed to another user."""
    targets = [options[i + 2] for i, option in enumerate(options) if option.startswith("--ro-bind")]
    parents = {str(parent) for target in targets for parent in Path(target).parents} - {"/"}
    made = (part for path in sorted(parents) for part in ("--perms", "0755", "--dir", path))
    return [*made, *options]


_VALUES = {
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "HOME": "/scratch/.home", "TMPDIR": "/tmp", "IPYTHONDIR": "/scratch/.home/ipython",
    "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "Agg", "LANG": "C.UTF-8",
    "USER": "student", "LOGNAME": "student",  # nobody is in /etc/passwd here, and getpass.getuser() would look there
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo", "HW_UTILS_PRELOAD": "0", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip


def _environment() -> list[str]:
    return ["--clearenv", *(part for name, value in _VALUES.items() for part in ("--setenv", name, value))]
