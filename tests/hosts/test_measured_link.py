"""A measured link: the fit, its residuals, and what it predicts."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import pytest

from hw_utils import Network, launch, simulate
from hw_utils.hosts import measured_link


def test_the_fit_finds_latency_and_bandwidth_again():
    network = Network(latency_s=30e-6, bandwidth_Bps=2e9)
    sizes = [10, 1000, 100_000, 10_000_000]
    found = measured_link.fit(sizes, [network.message_s(n) for n in sizes])
    assert found.latency_s == pytest.approx(30e-6, rel=1e-4)
    assert found.bandwidth_Bps == pytest.approx(2e9, rel=1e-4)


def test_one_slow_measurement_hardly_moves_the_fit():
    network = Network(latency_s=30e-6, bandwidth_Bps=2e9)
    sizes = measured_link.SIZES_BYTES
    seconds = [network.message_s(n) * (50 if i == 4 else 1.0) for i, n in enumerate(sizes)]
    found = measured_link.fit(sizes, seconds)
    assert found.latency_s == pytest.approx(30e-6, rel=0.01)
    assert found.bandwidth_Bps == pytest.approx(2e9, rel=0.01)


def test_a_line_needs_two_sizes():
    with pytest.raises(ValueError, match="at least two different sizes"):
        measured_link.measure([8, 8])


def test_a_calibration_shows_its_fit_and_its_residuals():
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    found = measured_link.Calibration(network, (1000, 4000), (0.002, 0.004))
    assert found.residuals.tolist() == pytest.approx([0.0, 0.25])
    assert "off by 25% at most" in str(found)
    assert found.plot().get_xlabel()


SIZES_BYTES = (2_000, 50_000, 300_000, 2_000_000)  # none of those that the fit has seen


def there_and_back(rank: int, world_size: int) -> float:
    """One way, all sizes together."""
    return sum(measured_link.ping_pong(rank, world_size, SIZES_BYTES, 50))


@pytest.mark.alone
def test_a_measured_network_predicts_two_ranks_within_a_fifth():
    errors = []
    for _ in range(5):  # what else the machine does makes the real side slower, never the model
        network = Network.measure()
        predicted = simulate(there_and_back, 2, network=network, compute="free", echo=False)[0]
        errors.append(predicted / launch(there_and_back, 2, echo=False)[0] - 1)
        if abs(errors[-1]) < 0.2:
            return
    pytest.fail(f"predicted times are off by {', '.join(f'{e:+.0%}' for e in errors)}")


def test_the_ping_pong_takes_a_message_of_the_model_each_way():
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    run = simulate(measured_link.ping_pong, 2, ([100, 1000], 2), network=network, compute="free", echo=False)
    assert run[0] == pytest.approx([network.message_s(100), network.message_s(1000)])
    assert run.trace.ops == {"send", "recv"}
