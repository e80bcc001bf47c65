"""A check's two halves in processes of their own: answers on one side, driver on the other, the judge behind both.

Stands on sandbox; the `role_*` modules are what runs inside it. `course` takes drivers, judges and verdicts.
"""
