"""Writes a file of 1 GB."""

# expects: fail limit
with open("large", "wb") as file:
    for _ in range(1024):
        file.write(bytes(2**20))
