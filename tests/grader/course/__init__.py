"""A whole class: the same verdict everywhere, exports, the formgrader."""
