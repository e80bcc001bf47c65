"""The instructor's package, never shipped to students.

`sandbox` has the walls around students' code, `driving` asks answers and judges them, `notebook` is one submission,
`course` a class, `term` what comes and goes: class lists, downloads, due dates. `grade` and `report` are commands.
"""

import sys

# jsonschema, which nbformat stands on, compiles a grammar for links if this is installed: 1.5 s in every process.
sys.modules.setdefault("rfc3987_syntax", None)
