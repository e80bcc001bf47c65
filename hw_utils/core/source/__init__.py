"""The student's code: which cell and line something happened at, whose file a frame is in, what a stuck rank noted.

Stands on nothing of ours. Others take lines and their cells, and ask whether a file is the student's.
"""
