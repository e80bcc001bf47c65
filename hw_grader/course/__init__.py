"""A class: many submissions graded, written into nbgrader's gradebook, exported, made into pages, compared.

`read_submissions` has submissions read, `batch` grades a class, `grading` one submission,
`grading_records` keeps what came of it, `gradebook` writes the marks.
Stands on notebook, driving and sandbox. The commands `hw_grader.grade` and `hw_grader.report` are its front.
"""
