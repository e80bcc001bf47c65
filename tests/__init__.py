"""The test suite, in the rooms of the house; `right_answers` and `wrong_answers` lie in checks."""
