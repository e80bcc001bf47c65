"""A warm parent that answers after its limit is ended: a late answer is nobody's."""

from __future__ import annotations

import pytest

from hw_grader.sandbox.sandbox import SHARED, SandboxError
from tests.grader.in_sandbox import inside, needs_sandbox


@needs_sandbox
@pytest.mark.slow
def test_a_sandbox_that_answers_late_is_ended_and_the_next_question_has_its_own_answer():
    late = SHARED.get()
    for parent in inside(late)[0]:
        parent.suspend()
    late.control.settimeout(0.01)  # it never answers, however long one waits
    with pytest.raises(SandboxError, match="does not answer"):
        late.start("cells")
    assert late.bwrap.poll() is not None
    with pytest.raises(SandboxError, match="is gone"):
        late.ask({"do": "interrupt", "number": 7})
    with SHARED.get().start("cells") as process:
        assert process.sandbox is not late
        assert process.sandbox.ask({"do": "interrupt", "number": process.number}) == {"interrupted": process.number}
