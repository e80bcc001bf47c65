"""Opens the course's files by the names the grader knows them by."""

# expects: fail
found = []
for path in (
    "COURSE/solutions/secret.txt",
    "COURSE/gradebook.db",
    "COURSE/submitted/other/secret.txt",
    "/etc/shadow",
    "/etc/passwd",
):
    try:
        open(path).read()
    except OSError:
        continue
    found.append(path)
assert not found, found
print("NOTHING FOUND")
