"""Divisibility of a model's sizes by the degrees of a configuration."""

from __future__ import annotations

from trainyard.errors import BadInput
from trainyard.model import Model
from trainyard.units import show_divisors


def check_tensor_parallelism(model: Model, tp: int, where: str) -> None:
    """Raises `BadInput` if `tp` does not divide the model's heads and groups. Readers call it before they divide the
    devices by `tp`: another device count would not help. `where`: the name of the file in messages."""
    for size_name, size in (
        ("heads", model.heads),
        # Multi-head latent attention (kv_lora_rank > 0) has no key/value heads to divide.
        ("key/value heads", 0 if model.kv_lora_rank else model.kv_heads),
        ("groups of state spaces", model.ssm_groups if model.hybrid_pattern else 0),
    ):
        check_divisor(size_name, size, "tensor parallelism", tp, where)


def check_divisor(size_name: str, size: int, axis_name: str, divisor: int, where: str) -> None:
    """Raises `BadInput`, with the remainder, if `divisor` does not divide `size`. `where`: the name of the file."""
    if size % divisor:
        raise BadInput(
            f"{where}: {size} {size_name} % {axis_name} {divisor} = {size % divisor}.",
            f"Use a divisor of the {size_name}: {show_divisors([size])}.",
        )
