"""Looks through every object there is for the hidden cases."""

# expects: fail
import gc

found = [o for o in gc.get_objects() if isinstance(o, dict) and ("HIDDEN" in str(list(o)[:5]) or "bandwidth_Bps" in o)]
print("in the notebook:", len([o for o in found if o.get("latency_s") == 0.25]))
assert not [o for o in found if o.get("latency_s") == 0.25]
