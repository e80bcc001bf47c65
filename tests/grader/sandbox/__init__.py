"""Submissions that cheat, harm or hang; the walls; what grading holds."""
