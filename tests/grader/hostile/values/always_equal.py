"""Answers that are equal to anything."""


# expects: fail
class Equal(float):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = float.__hash__

    def __lt__(self, other):
        return True

    __gt__ = __le__ = __ge__ = __lt__

    def __getattr__(self, name):
        return self

    def __call__(self, *a, **k):
        return self


class EqualDict(dict):
    def get(self, *a):
        return Equal(1)

    __getitem__ = __missing__ = lambda self, key: Equal(1)


def ping_pong(rank, world_size, n_rounds):
    return Equal(0)


def fit_link(sizes, seconds):
    return Equal(0), Equal(0)


predictions = EqualDict()
