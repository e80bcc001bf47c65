"""What all tests of pictures share."""

from __future__ import annotations

import matplotlib.pyplot as plt


def pytest_runtest_teardown() -> None:
    """No picture outlives its test; a fixture would be one for all examples of a property."""
    plt.close("all")
