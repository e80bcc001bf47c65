"""Answers and drivers in processes of their own."""
