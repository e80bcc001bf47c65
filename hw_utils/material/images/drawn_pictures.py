"""A ten-class set of 3x32x32 colour pictures, drawn by a program: CIFAR-10's shape with no download.

Every picture is one figure of a random colour, size and place on a background that fades between two colours,
with noise. The class is the figure alone; colour says nothing about it.
"""

from __future__ import annotations

import numpy as np

CLASSES = (
    "disc", "square", "triangle", "plus", "ring", "rows", "columns", "diagonals", "checkerboard", "dots",
)  # fmt: skip
SIDE = 32


def drawn_images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 (n, 3, 32, 32), int64 (n,)): the classes take turns, so that any prefix is balanced.

    The same seed gives the same pictures everywhere: numpy promises that of RandomState.
    """
    random = np.random.RandomState(seed)
    labels = np.arange(n) % len(CLASSES)
    inside = _figures(n, random)[:, None]  # (n, 1, 32, 32)
    figure = random.uniform(0, 1, (n, 3, 1, 1)).astype("f4")
    background = _fade(n, random)
    # A figure that its background hides cannot be learned: push the two brightnesses apart.
    gap = figure.mean((1, 2, 3)) - background.mean((1, 2, 3))
    push = np.where(gap >= 0, 1, -1) * np.maximum(0, 0.35 - np.abs(gap))
    figure = figure + push[:, None, None, None].astype("f4")
    noise = np.frombuffer(random.bytes(n * 3 * SIDE**2), "u1").reshape(n, 3, SIDE, SIDE) * np.float32(50 / 255) - 25
    image = np.where(inside, figure, background) * 255 + noise
    return np.clip(image, 0, 255).astype(np.uint8), labels.astype(np.int64)


def _fade(n: int, random: np.random.RandomState) -> np.ndarray:
    start, end = random.uniform(0.1, 0.9, (2, n, 3, 1, 1)).astype("f4")
    angle = random.uniform(0, 2 * np.pi, (n, 1, 1, 1)).astype("f4")
    y, x = (np.mgrid[0:SIDE, 0:SIDE] / (SIDE - 1) - 0.5).astype("f4")
    way = np.clip(0.5 + x * np.cos(angle) + y * np.sin(angle), 0, 1)
    return start + (end - start) * way


def _figures(n: int, random: np.random.RandomState) -> np.ndarray:
    """bool (n, 32, 32): inside the figure or outside; picture i shows figure i mod 10."""
    centre = random.uniform(13, 18, (n, 2, 1, 1)).astype("f4")
    radius = random.uniform(8, 13, (n, 1, 1)).astype("f4")
    period = random.uniform(6, 9, (n, 1, 1)).astype("f4")
    row, column = np.mgrid[0:SIDE, 0:SIDE].astype("f4")
    inside = np.empty((n, SIDE, SIDE), bool)
    for k in range(len(CLASSES)):
        mine = slice(k, None, len(CLASSES))
        x, y = column - centre[mine, 0], row - centre[mine, 1]
        inside[mine] = _figure(CLASSES[k], x, y, radius[mine], period[mine])
    return inside


def _figure(name: str, x: np.ndarray, y: np.ndarray, radius: np.ndarray, period: np.ndarray) -> np.ndarray:
    def stripes(t):
        return np.mod(t, period) < period / 2

    def box():
        return np.maximum(np.abs(x), np.abs(y)) < radius

    def to_dot(t):
        return np.mod(t, period) - period / 2

    return {
        "disc": lambda: np.hypot(x, y) < radius,
        "square": box,
        "triangle": lambda: (y < radius) & (y > 2 * np.abs(x) - radius),
        "plus": lambda: box() & (np.minimum(np.abs(x), np.abs(y)) < radius / 3.5),
        "ring": lambda: (np.hypot(x, y) < radius) & (np.hypot(x, y) > 0.6 * radius),
        "rows": lambda: stripes(y),
        "columns": lambda: stripes(x),
        "diagonals": lambda: stripes((x + y) / np.float32(np.sqrt(2))),
        "checkerboard": lambda: stripes(x) ^ stripes(y),
        "dots": lambda: np.hypot(to_dot(x), to_dot(y)) < period / 3,
    }[name]()
