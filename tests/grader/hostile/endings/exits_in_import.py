"""os._exit while a module is imported."""

# expects: crashed
with open("helper.py", "w") as file:
    file.write("import os; os._exit(0)")
import sys

sys.path.insert(0, ".")
import helper
