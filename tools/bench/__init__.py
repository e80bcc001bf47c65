"""How fast: launch, simulate, grading and two lessons, each against something else in the same run. `make bench`."""
