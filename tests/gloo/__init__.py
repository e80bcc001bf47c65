"""What a real rank writes down of its calls, and what others read of it."""
