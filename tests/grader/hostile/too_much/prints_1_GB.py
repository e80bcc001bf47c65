"""Prints 1 GB."""

# expects: fail limit
for _ in range(100_000):
    print("x" * 10_000)
