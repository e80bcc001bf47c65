"""Simulations of checks take place in the test's own process, as in the grader's drivers: a fork less for each."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

import cloudpickle
import pytest

from hw_utils.virtual.simulation import simulation
from tests.checks import right_answers, wrong_answers


@pytest.fixture(scope="package", autouse=True)
def answers_are_as_in_cells():
    """A run gets copies of them, so that what one keeps is gone with the run."""
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in (right_answers, wrong_answers)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(autouse=True)
def simulations_stay_here(monkeypatch):
    """Programs that need a process a rank get them all the same."""
    simulate = sys.modules["hw_utils.simulate"]
    isolated = simulate._isolated

    def here(call: bytes, job: dict, timeout_s: float) -> dict:
        if "apart" in job:
            return isolated(call, job, timeout_s)
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()  # else a class comes back as the test's own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's are no failures of the answer's
            return simulation(call, job, timeout_s=timeout_s)

    monkeypatch.setattr(simulate, "_isolated", here)
