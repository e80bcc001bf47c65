"""Grading a class, from one jailed process to the gradebook; a room for each of hw_grader's."""
