"""Sentences of a small grammar that a program draws: how well they can be foretold is known exactly."""

from __future__ import annotations

import math
import random

ADJECTIVES = ("small", "quick", "old", "white", "curious", "mad", "grave", "lazy")
NOUNS = ("rabbit", "queen", "hatter", "duchess", "turtle", "gryphon", "dormouse", "king")
VERBS = ("follows", "sees", "hears", "forgets")
P_ADJECTIVE = 0.5  # of a noun to have one; no noun begins as an adjective does


def drawn_sentences(n: int, seed: int) -> str:
    """n sentences, a line each: `the old queen sees the turtle.`"""
    draw = random.Random(seed)
    return "".join(f"{_phrase(draw)} {draw.choice(VERBS)} {_phrase(draw)}.\n" for _ in range(n))


def _phrase(draw: random.Random) -> str:
    adjective = f"{draw.choice(ADJECTIVES)} " if draw.random() < P_ADJECTIVE else ""
    return f"the {adjective}{draw.choice(NOUNS)}"


def nats_per_character() -> float:
    """Entropy of the source in nats a character: what a sentence holds over how long it is on average.

    Each choice can be read off the sentence, so what the sentence holds is the sum of its choices.
    """
    coin = -P_ADJECTIVE * math.log(P_ADJECTIVE) - (1 - P_ADJECTIVE) * math.log(1 - P_ADJECTIVE)
    phrase = coin + P_ADJECTIVE * math.log(len(ADJECTIVES)) + math.log(len(NOUNS))
    length = 4 + P_ADJECTIVE * (1 + _mean_length(ADJECTIVES)) + _mean_length(NOUNS)
    return (2 * phrase + math.log(len(VERBS))) / (2 * length + _mean_length(VERBS) + 4)


def _mean_length(words: tuple[str, ...]) -> float:
    return sum(map(len, words)) / len(words)
