"""The class on one screen: what it says of a class, its size, and the page in a browser."""

from __future__ import annotations

import random

import pytest

from hw_grader.report import ClassResult, Mark, Row, to_class_page
from hw_grader.term import overview

LESSONS = [f"0{n}_lesson" for n in range(1, 7)]
WHY = [
    "rank {} has {} elements, expected 12  likely cause: the last chunk is shorter than the others",
    "not written yet.",
    "4 ranks stand still: rank {} waits for a message of rank {}, which has returned; the reduce is never finished",
    "took {} rounds, 3 are enough  likely cause: every rank sends to rank 0, one after the other",
]


def mark(name: str, share: float, reason: str = "") -> Mark:
    return Mark(f"check-{name}", 5 * share, 5, reason=reason if share < 1 else "", cause=reason.partition("cause: ")[2])


def row(student: str, *shares: float, reason: str = "wrong") -> Row:
    return Row(student, tuple(mark(f"c{n}", share, reason) for n, share in enumerate(shares)))


def big_class(n_students: int = 300) -> list[ClassResult]:
    """300 students x 6 lessons x 8 checks, a third of the points lost for reasons with numbers in them."""
    draw, found = random.Random(1), []
    for lesson in LESSONS:
        rows = []
        for n in range(n_students):
            name = f"student.{n:03d}@example.edu"
            marks = tuple(
                mark(f"exercise-{k}", float(draw.random() > 0.3 * (k + 1) / 4), draw.choice(WHY).format(n, k))
                for k in range(8)
            )
            rows.append(Row(name, marks if draw.random() > 0.05 else (), unreadable=draw.random() < 0.01))
        found.append(ClassResult(lesson, rows))
    return found


def test_causes_are_counted_by_student_whatever_numbers_they_name():
    rows = [row(f"s{n}", 0, 1, reason=f"rank {n} has {n}.5 seconds") for n in range(3)]
    (cause,) = overview.causes([ClassResult("01", rows)])
    assert (cause.students, cause.where, cause.text) == (("s0", "s1", "s2"), "01: c0", "rank 0 has 0.5 seconds")


def test_what_is_not_graded_counts_in_no_bar_and_no_cause():
    rows = [row("ada", 1, 0.2), Row("bob"), Row("cy", (mark("c0", 0, "grader-fault: x"),))]
    result = ClassResult("01", rows)
    assert [bar.said for bar in overview.distribution(result)] == ["0"] * 6 + ["1"] + ["0"] * 3
    assert [(bar.name, bar.said) for bar in overview.by_exercise(result)] == [("c0", "100 %"), ("c1", "20 %")]
    assert [bar.name for bar in overview.hardest([result])] == ["01: c1"]
    assert overview.missing([result]) == {"01": ["bob"]}
    assert overview.table([result])[1]["share"] is None


def test_who_stands_still_is_weak_or_absent_twice_in_a_row():
    first = ClassResult("01", [row("ada", 1), row("bob", 0.2), Row("cy"), row("dan", 0.2)])
    second = ClassResult("02", [row("ada", 0.2), row("bob", 0.3), Row("cy"), row("dan", 1)])
    assert overview.standing_still([first]) == {}
    assert overview.standing_still([first, second]) == {
        "bob": "20 % of the points, then 30 % of the points",
        "cy": "nothing handed in, then nothing handed in",
    }


def test_three_hundred_students_and_six_lessons_are_below_one_megabyte():
    page = to_class_page(big_class())
    assert len(page.encode()) < 1_000_000, len(page.encode())
    assert page.count('<tr><th scope="row"><a') == 300


def test_what_is_not_written_yet_is_one_reason_a_lesson():
    marks = [Mark(f"check-{n}", 0.0, 1.0, reason=f"{n} is not written yet.", cause="the stub") for n in ("a", "b", "c")]
    marks.append(Mark("check-d", 0.0, 1.0, reason="wrong", cause="ranks count from 0"))
    found = overview.causes([ClassResult("01", [Row("ada", tuple(marks)), Row("bob", tuple(marks[:3]))])])
    assert [(cause.where, cause.text, cause.students) for cause in found] == [
        ("01", "something is not written yet", ("ada", "bob")),
        ("01: d", "ranks count from 0", ("ada",)),
    ]


def test_an_empty_course_and_a_hostile_name_make_a_page():
    assert "0 students" in to_class_page([])
    page = to_class_page([ClassResult("01", [Row("</details><script>alert(1)</script>")])])
    assert "<script>alert" not in page


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_sorts_filters_keeps_its_head_and_axe_finds_nothing_serious(browser, tmp_path, scheme):
    from axe_playwright_python.sync_playwright import Axe

    (tmp_path / "class.html").write_text(to_class_page(big_class()), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.goto((tmp_path / "class.html").as_uri())
    for down in (False, True):
        page.get_by_role("button", name="all, %").click()
        texts = page.locator("#everybody tbody td:nth-child(2)").all_inner_texts()
        values = [int(text) for text in texts if text]
        assert values == sorted(values, reverse=down)
    page.locator("#filter").fill("student.01")
    assert page.locator("#everybody tbody tr:visible").count() == 10
    assert page.locator("#shown").inner_text() == "10 of 300"
    page.locator("#filter").fill("")
    page.set_viewport_size({"width": 500, "height": 800})
    page.locator(".wide").evaluate("box => { box.scrollTop = 2000; box.scrollLeft = 100 }")
    left, names = (page.locator(f"#everybody {s}").first.bounding_box()["x"] for s in ("thead th", "tbody th"))
    assert left == names  # no lesson's head stands above the names
    head, box = (page.locator(s).first.bounding_box()["y"] for s in ("#everybody thead th", ".wide"))
    assert abs(head - box) < 3
    page.locator("#everybody tbody a").nth(3).click()
    assert page.locator("details:target[open]").count() == 1
    assert problems == []  # nothing refused by the page's own policy
    context.close()
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto((tmp_path / "class.html").as_uri())
    found = Axe().run(page).response["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
    context.close()
