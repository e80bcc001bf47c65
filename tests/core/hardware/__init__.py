"""Links, devices and clusters as data."""
