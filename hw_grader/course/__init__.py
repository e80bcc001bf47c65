"""A class: many submissions graded, written into nbgrader's gradebook, exported, given back, compared.

Stands on driving and notebook. The commands `hw_grader.grade` and `hw_grader.report` are its front.
"""
