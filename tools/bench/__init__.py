"""How fast: launch, simulate, folded runs, grading, lessons; each beside another or a target. `make bench`."""
