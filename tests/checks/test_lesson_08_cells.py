"""What lesson 08's own cells show is what they say."""

from __future__ import annotations

import pytest

from hw_utils.material import data
from tests.checks.references import lessons, namespace


def test_four_ranks_have_the_gradients_of_one_process():
    (lesson,) = (lesson for lesson in lessons() if lesson.name.startswith("08"))
    names, seen = namespace(lesson), []
    names |= {"text": data.alice(say=False).train, "seen": seen}
    (cell,) = (cell for cell in lesson.cells if "plot_gradients(norms" in cell.source)
    exec(cell.source.replace("lesson_08.plot_gradients(", "seen[:] = ("), names)
    whole, in_parts = seen
    assert in_parts == pytest.approx(whole, rel=1e-12)
