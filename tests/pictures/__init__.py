"""What pictures draw and say."""
