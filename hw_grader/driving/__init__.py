"""A check's two halves in processes of their own: answers on one side, driver on the other, the judge behind both.

Stands on sandbox; what runs inside it is in `roles`. `course` takes drivers, judges and verdicts.
"""
