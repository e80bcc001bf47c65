"""What a student does outside a cell: `python -m hw_utils NAME`, one module a command.

Stands on everything but checks and pictures, which it meets in a process of their own.
"""
