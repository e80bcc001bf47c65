"""Of a lesson's layer, stage, store or context what an answer may use, in the notebook as when it is graded apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Interface:
    """Named parts of an object, to use and not to change; other names are refused, and so are new ones.

    >>> one = Interface({"names": lambda: ["newest"]})
    >>> one.names()
    ['newest']
    >>> one.content
    Traceback (most recent call last):
        ...
    AttributeError: of this object you may use names; content is not part of it
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_parts", dict(parts))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return Interface, (object.__getattribute__(self, "_parts"),)  # as what an answer gives back by mistake

    @property
    def LENDS(self) -> tuple[str, ...]:
        """The names."""
        return tuple(object.__getattribute__(self, "_parts"))

    def __getattr__(self, name: str) -> Any:
        parts = object.__getattribute__(self, "_parts")
        if name in parts:
            return parts[name]
        raise AttributeError(f"of this object you may use {', '.join(parts)}; {name} is not part of it")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"of this object you may use {', '.join(self.LENDS)}; {name} cannot be set: keep what is yours on your own"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} is not yours to delete")


def interface(thing: Any) -> Interface:
    """What its class offers to answers by `LENDS`."""
    return Interface({name: getattr(thing, name) for name in type(thing).LENDS})
