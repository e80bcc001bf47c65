"""Texts as data: Alice is whole and free of marks, and a grammar is worth what its choices are."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from hw_utils import data
from hw_utils.material.text import grammar
from hw_utils.material.text.characters import ALPHABET, Characters, alice_text, numbers_of, text_of


def test_alice_is_the_whole_book_without_anybodys_mark():
    text = alice_text()
    assert len(text) == 148_476
    assert "Down the Rabbit-Hole" in text
    assert text.rstrip().endswith("THE END")
    assert text.count("CHAPTER ") == 12
    assert not any(word in text.lower() for word in ("gutenberg", " etext", "trademark"))


def test_alice_gives_windows_and_the_same_one_character_later():
    train, test = data.alice(say=False)
    assert len(train) + len(test) == len(alice_text()) - 2 * 64
    x, y = train[100]
    assert torch.equal(x[1:], y[:-1])
    many, _ = train[[100, 7]]
    assert torch.equal(many[0], x)
    assert text_of(numbers_of("Alice\n")) == "Alice\n"
    assert len(ALPHABET) == 96


def test_a_text_refuses_what_is_no_text():
    with pytest.raises(ValueError, match=r"printable ASCII.*got 'é'"):
        numbers_of("café")
    with pytest.raises(ValueError, match="longer than its context of 64, got 3"):
        Characters("abc", 64)


def test_a_grammars_entropy_is_that_of_its_sentences():
    n = 200_000
    text = grammar.drawn_sentences(n, seed=3)
    counts = Counter(text.splitlines())
    # what the sentences are worth by the probabilities of their own words
    p = math.log(1 / 4)
    nats = 0.0
    for line, times in counts.items():
        adjectives = len(line.split()) - 5
        nats -= times * (p + 2 * math.log(0.5 / 8) + adjectives * math.log(1 / 8))
    assert nats / len(text) == pytest.approx(grammar.nats_per_character(), rel=2e-3)
    assert len(counts) <= 4 * (8 * 9) ** 2  # the sentences that the grammar has


def test_no_prefix_of_a_sentence_hides_a_choice():
    words = (*grammar.ADJECTIVES, *grammar.NOUNS)
    assert not any(a != b and b.startswith(a) for a in words for b in words)


def test_a_grammars_text_says_its_entropy():
    train, test = data.grammar(n_train=50, n_test=20, say=False)
    assert train.nats == test.nats == grammar.nats_per_character()
    assert data.alice(say=False).train.nats is None
