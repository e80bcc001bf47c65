"""How much of a weight the ranks' layers of lesson 06 may keep, and how often."""

from __future__ import annotations

from hw_utils.core.errors import CheckFailed

LARGE_BYTES = 1_500_000  # of a weight: far more than all else that a layer keeps


def bytes_of(d_in: int, d_out: int, dtype: str) -> int:
    return d_in * d_out * (4 if dtype == "float32" else 8)


def require_little_kept(results: list, case: dict, what: str) -> None:
    local = case["d_in"] * case["d_out"] // case["world_size"] * (4 if case["dtype"] == "float32" else 8)
    for rank, result in enumerate(results):
        if not result["kept_bytes"] <= local:
            raise CheckFailed(
                f"{what}: rank {rank} keeps {result['kept_bytes']} bytes alive for a weight of {local}",
                cause="a slice is a view of the whole weight, and .contiguous() of the whole copies nothing: keep a "
                "copy of the slice (.clone())",
            )
        if result["whole"]:
            raise CheckFailed(
                f"{what}: self.{result['whole'][0]} keeps other ranks' part of the weight alive on rank {rank}",
                cause="1/N of the weight is kept: a copy of the slice (.clone()), and nothing of the whole",
            )
        if result["of_others"]:
            raise CheckFailed(
                f"{what}: rank {rank} holds what is another one when other ranks' part of the weight is: "
                f"{result['of_others']}",
                cause="1/N of the weight is kept, in whatever form: nothing of the rest, not as a text or a number",
            )


def require_no_copy(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        if result["twice"]:
            raise CheckFailed(
                f"{what}: rank {rank} kept its part of the weight twice, also in self.{result['twice'][0]}",
                cause="1/N of the weight is kept, once: a copy takes as much memory again, a view (.T) takes none",
            )


def require_little_taken(n_bytes: int | None, case: dict, what: str) -> None:
    """n_bytes: what all ranks' layers have left in use. With backward there are two a rank, and a gradient."""
    whole = bytes_of(case["d_in"], case["d_out"], case["dtype"])
    allowed = 3 if case["backward"] else 1
    if n_bytes is None or whole < LARGE_BYTES or n_bytes <= (9.5 if case["backward"] else 5) * whole:
        return
    raise CheckFailed(
        f"{what}: all ranks' layers together keep {n_bytes / whole:.3g} times the weight's bytes, {allowed} "
        f"{'is' if allowed == 1 else 'are'} enough",
        cause="1/N of the weight is kept, in whatever form: nothing of the rest, not as a text or in a file either",
    )
