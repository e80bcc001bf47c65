"""SystemExit and KeyboardInterrupt in cells."""

# expects: fail
import sys

sys.exit(0)
# %%
raise KeyboardInterrupt
# %%
quit()
