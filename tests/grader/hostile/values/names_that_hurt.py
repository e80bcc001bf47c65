"""An answer whose name, text and pickle are made to hurt whoever asks."""

# expects: crashed
import os


class Answer:
    def __init__(self, name):
        self.__name__ = name

    def __repr__(self):
        os._exit(0)

    __str__ = __hash__ = __repr__

    def __call__(self, *args, **options):
        error = type("CheckFailed" * 50, (Exception,), {"__str__": lambda self: os._exit(0)})
        raise error


def opens(*_):
    return lambda *a, **k: {"right": True}


class Opens:
    def __reduce__(self):
        return opens, ()


hello, fit_link, ping_pong = Answer("\0\n\033[2J" * 1000), Answer(Answer("")), Opens()
