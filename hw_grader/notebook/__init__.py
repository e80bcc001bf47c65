"""A submission as a notebook: found, read, put in order against the release, and its cells run.

Stands on driving and sandbox. `course` takes everything.
"""
