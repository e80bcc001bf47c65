"""Values of types that lie: numbers, texts and dictionaries that are another thing each time they are looked at."""

# expects: fail
import torch


class Number(float):
    def __eq__(self, other):
        return True

    def __float__(self):
        return 1e-3

    __lt__ = __gt__ = __le__ = __ge__ = __eq__
    __hash__ = float.__hash__


class Text(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Table(dict):
    def items(self):
        return [(Text(k), Text("hangs")) for k in ("both_send_first", "one_recv_too_many")]

    def __getitem__(self, key):
        return Text("hangs")

    def get(self, key, default=None):
        return Text("hangs")

    def __contains__(self, key):
        return True


class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

    def __array__(self, *a, **k):
        import numpy

        return numpy.array([1e-3, 1e6])

    def item(self):
        return 1e-3


predictions = Table()


def fit_link(sizes, seconds):
    return (Number(0.0), Liar([0.0])) if len(sizes) % 2 else Liar([0.0, 0.0])


def ping_pong(rank, world_size, n_rounds):
    return Number(-0.0)


def hello(rank, world_size, name):
    print(Text("hello"), end=Text(""))
