"""Prints one line of 20 MB."""

# expects: fail
print("x" * 20_000_000)
