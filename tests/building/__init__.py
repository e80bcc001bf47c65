"""lessons -> solutions -> notebooks, what is published, and the house itself: rooms, packages, pages."""
