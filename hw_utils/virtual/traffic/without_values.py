"""Messages and collectives of tensors without values: nothing is copied; who receives has none either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.ranks.shapes.known_values import are_known, forget, is_known, learn
from hw_utils.virtual.ranks.shapes.shapes_mode import ShapesOnly
from hw_utils.virtual.ranks.shapes.value_readers import values_asked_for
from hw_utils.virtual.traffic import reductions, tensor_bytes
from hw_utils.virtual.traffic.messages import matching, requests
from hw_utils.virtual.traffic.tensor_bytes import NOTHING


def contents(tensor, n_bytes: int) -> bytes:
    """The bytes of a tensor, or NOTHING."""
    return tensor_bytes.contents(tensor, n_bytes) if is_known(tensor) else NOTHING


def fill(tensor, data: bytes) -> None:
    """What has come, to where a rank wants it."""
    if data is NOTHING:
        forget(tensor)
    else:
        tensor_bytes.fill(tensor, data)
        learn([tensor])


def copy(source, target, n_bytes: int) -> None:
    fill(target, contents(source, n_bytes))


@contextmanager
def shapes_only(*others) -> Iterator[ShapesOnly]:
    """While it lasts, this process's ranks have tensors without values; the mode is for other threads of ranks."""
    mode = ShapesOnly()
    with nothing_moves(*others), values_asked_for():
        mode.begin()
        try:
            yield mode
        finally:
            mode.end()


@contextmanager
def nothing_moves(*others) -> Iterator[None]:
    """While it lasts, traffic asks whether there is anything to move. others: more modules that copy bytes."""
    with ExitStack() as stack:
        for module in (matching, requests, *others):
            for function in (contents, fill, copy):
                if hasattr(module, function.__name__):
                    stack.callback(setattr, module, function.__name__, getattr(module, function.__name__))
                    setattr(module, function.__name__, function)
        stack.callback(reductions.TOGETHER.update, dict(reductions.TOGETHER))
        reductions.TOGETHER.update({kind: _together(work) for kind, work in reductions.TOGETHER.items()})
        for function, wrapped in (
            (reductions.kept, _kept), (reductions.deliver, _delivered), (reductions.deliver_gathered, _gathered),
        ):  # fmt: skip
            stack.callback(setattr, reductions, function.__name__, function)
            setattr(reductions, function.__name__, wrapped(function))
        yield


def _together(work: Callable) -> Callable:
    def call(posts) -> None:
        outputs = [tensor for post in posts for tensor in post.outputs]
        if not are_known(tensor for post in posts for tensor in post.inputs):
            for tensor in outputs:
                forget(tensor)
            return
        with unseen():
            work(posts)
        learn(outputs)

    return call


def _kept(kept: Callable) -> Callable:
    def call(tensor):
        if not is_known(tensor):
            return reductions.flat(tensor)
        with unseen():
            return kept(tensor)

    return call


def _delivered(deliver: Callable) -> Callable:
    def call(kind: str, post, place: int, root_post) -> None:
        if kind == "broadcast" and post is root_post:
            return
        if are_known(root_post.kept):
            deliver(kind, post, place, root_post)
            learn(post.outputs)
        else:
            for tensor in post.outputs:
                forget(tensor)

    return call


def _gathered(deliver: Callable) -> Callable:
    def call(root_post, posts) -> None:
        if are_known(tensor for post in posts.values() for tensor in post.kept):
            deliver(root_post, posts)
            learn(root_post.outputs)
        else:
            for tensor in root_post.outputs:
                forget(tensor)

    return call
