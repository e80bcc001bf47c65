"""Programs as others write them, on both engines."""
