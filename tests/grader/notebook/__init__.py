"""What was handed in: damaged, late, half run."""
