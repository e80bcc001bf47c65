"""Files named as modules that the grader uses."""

# expects: fail
import os
import sys

for name in ("torch", "json", "hw_utils", "cloudpickle", "nbformat", "sitecustomize"):
    with open(f"{name}.py", "w") as file:
        file.write("raise SystemExit('shadowed')")
sys.path.insert(0, os.getcwd())
os.environ["PYTHONPATH"] = os.getcwd()
sys.modules.pop("json", None)
