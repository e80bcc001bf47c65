"""The instructor's package: sandbox, verdicts, batch, exports."""

import sys

# jsonschema, which nbformat stands on, compiles a grammar for links if this is installed: 1.5 s in every process.
sys.modules.setdefault("rfc3987_syntax", None)
