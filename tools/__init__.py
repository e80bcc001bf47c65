"""Build scripts: lessons/ -> solutions/ -> notebooks/, and what is published."""
