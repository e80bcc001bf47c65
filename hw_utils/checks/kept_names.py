"""What answers keep from call to call outside of their objects: under global names, on functions, on classes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from hw_utils.core.source.students_files import is_students
from hw_utils.material.kept.tensors import global_names

_CONTAINERS = (dict, defaultdict, OrderedDict, list, set, deque)
_MOST_THINGS = 10_000


class KeptNames:
    """What stands there now; of answers that are in another process nothing is seen."""

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = [*answers]
        self._was = _look(self._answers)

    def put_back(self) -> str:
        """Makes all of it what it was; the name of something that was another one, "" if nothing was."""
        now = _look(self._answers)
        changed = [path for path in now if path not in self._was or now[path].differs(self._was[path])]
        for path in changed:
            now[path].remove() if path not in self._was else self._was[path].put_back()
        return min(changed, key=len, default="")


class _Place:
    """A name and its value; of a container also what is in it."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value
        self.inside = _copied(value) if type(value) in _CONTAINERS else None

    def differs(self, was: _Place) -> bool:
        if self.value is not was.value:
            return True
        mine, theirs = _parts(self.inside), _parts(was.inside)
        return len(mine) != len(theirs) or any(a is not b for a, b in zip(mine, theirs))

    def put_back(self) -> None:
        if self.inside is not None:
            self.value.clear()
            (self.value.extend if isinstance(self.value, list | deque) else self.value.update)(self.inside)
        if isinstance(self.owner, type):
            setattr(self.owner, self.name, self.value)
        else:
            self.owner[self.name] = self.value

    def remove(self) -> None:
        if isinstance(self.owner, type):
            delattr(self.owner, self.name)
        else:
            del self.owner[self.name]


def _copied(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _parts(inside: Any) -> list[Any]:
    return [part for pair in inside.items() for part in pair] if isinstance(inside, dict) else inside or []


def _look(answers: list[Any]) -> dict[str, _Place]:
    """Path -> place, of all that the students' functions and classes lead to."""
    found: dict[str, _Place] = {}
    waiting, seen = deque(answers), set()
    while waiting and len(found) < _MOST_THINGS:
        thing = waiting.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for path, owner, name, value in _names_of(thing):
            if isinstance(value, FunctionType | type | staticmethod | classmethod | property):
                waiting.append(getattr(value, "__func__", value))
            elif type(value) not in _CONTAINERS or len(value) <= _MOST_THINGS:
                found.setdefault(path, _Place(owner, name, value))
    return found


def _names_of(thing: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """(path, what has the name, name, value) of what a function or class of a student's can reach."""
    if isinstance(thing, FunctionType) and is_students(thing.__code__.co_filename):
        names = thing.__globals__
        yield from ((name, names, name, value) for name, value in global_names(thing.__code__, names))
        yield from ((f"{thing.__name__}.{name}", vars(thing), name, value) for name, value in vars(thing).items())
    elif isinstance(thing, type) and any(_is_written_here(part) for part in vars(thing).values()):
        own = {name: value for name, value in vars(thing).items() if not name.startswith("__") or callable(value)}
        yield from ((f"{thing.__name__}.{name}", thing, name, value) for name, value in own.items())
        yield from ((kind.__name__, None, "", kind) for kind in thing.__bases__)


def _is_written_here(part: Any) -> bool:
    return isinstance(part, FunctionType) and is_students(part.__code__.co_filename)
