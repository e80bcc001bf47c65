"""A class over Dask: no open port unasked, certificates by Dask's own settings, a scheduler that is lost."""

from __future__ import annotations

import pytest

from hw_grader.course.batch import ClusterError, cluster, is_private


@pytest.mark.parametrize(
    "address", ["tcp://203.0.113.7:8786", "203.0.113.7:8786", "tcp://[2001:db8::1]:8786", "ucx://10.9.8.7:1"]
)
def test_a_plain_scheduler_on_another_machine_is_refused_with_the_way_out(address):
    assert not is_private(address)
    with pytest.raises(ClusterError, match=r"tls://.*--insecure"), cluster(address):
        raise AssertionError("it was taken")


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "127.0.0.1:1", "tcp://[::1]:1", "tls://203.0.113.7:1"]
)
def test_tls_and_this_machine_are_taken(address):
    assert is_private(address)
