"""The test suite, in the rooms of the house; `right_answers` and `wrong_answers` lie in checks.

One thread for each of its processes, and those that they start: several on few cores must not wait for threads of
their own, which OpenBLAS and OpenMP do by spinning. Read when numpy and torch are imported, so it stands here.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
