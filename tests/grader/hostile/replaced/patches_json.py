"""json that writes and reads only what the student likes."""

# expects: fail
import json

json.dumps = lambda *a, **k: '{"right": true, "data": true, "pickled": 1}'
json.loads = lambda *a, **k: {"right": True, "answers": ["hello"], "run": ""}
