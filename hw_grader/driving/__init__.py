"""A check's two halves in processes of their own: answers on one side, driver on the other, the judge behind both.

What runs inside the sandbox is in `roles`. Stands on sandbox, and on hw_utils.core, hw_utils.material,
hw_utils.processes, hw_utils.threads and hw_utils.virtual. `course` takes drivers and judges.
"""
