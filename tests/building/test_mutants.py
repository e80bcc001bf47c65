"""Solutions with one change: each is another program, and what is given stays as it is."""

from __future__ import annotations

import ast

from tests.checks.references import lessons
from tools.search_cases.mutants import mutants

_GIVEN = """
def total(values, start=1):
    found = start + 1
    ### BEGIN SOLUTION
    for value in values:
        found += value
    return found
    ### END SOLUTION
"""


def test_a_solution_is_changed_in_one_place_at_a_time():
    found = dict(mutants("def half(n):\n    return n // 2\n"))
    assert found["line 2: `n // 2` has Div"].endswith("return n / 2")
    assert found["line 2: `2` is one more"].endswith("return n // 3")
    assert found["line 2: `n // 2` is its left side only"].endswith("return n")
    assert len(set(found.values())) == len(found)


def test_only_the_lines_of_the_solution_are_changed():
    found = dict(mutants(_GIVEN))
    assert "line 6: `found += value` replaces" in found
    assert "line 5: `for value in values:` leaves out the first" in found
    assert not [what for what in found if what.startswith(("line 2", "line 3")) and "before" not in what]


def test_every_exercise_has_changes_that_are_python_and_leave_its_names():
    for cell in lessons()[2].with_role("exercise"):
        found = dict(mutants(cell.source))
        assert found
        for text in found.values():
            compile(text, "<mutant>", "exec")
        names = {n.name for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert all(names <= {getattr(n, "name", "") for n in ast.parse(text).body} for text in found.values())
