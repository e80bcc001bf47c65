"""Makes 100,000 files."""

# expects: fail limit
for n in range(100_000):
    open(f"f{n}", "w").close()
