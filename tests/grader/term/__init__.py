"""Proves hw_grader/term: collecting from each LMS, due dates, marks and pages that go back."""
