"""Lessons become notebooks, and an edited notebook a lesson again; `fixtures` has a course of one tiny lesson."""
