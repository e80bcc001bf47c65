"""Replaces the driver of the running check for the cases to come."""


# expects: fail
def fit_link(sizes, seconds):
    from hw_utils.checks import lesson_01

    object.__setattr__(
        lesson_01.fit_link, "driver", lambda fit, latency_s, bandwidth_Bps, noise: [latency_s, bandwidth_Bps]
    )
    return 0.0, 0.0
