"""What a student does outside a cell: `python -m hw_utils NAME`, one module a command.

Stands on hosts, pictures, simulate, launch, processes, material and core; checks run in a process of their own.
"""
