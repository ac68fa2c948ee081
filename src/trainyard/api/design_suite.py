"""The suite of trainings that designs of a machine are compared on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class SuiteTraining(NamedTuple):
    """A model with the numbers of its training. `seq_len`: None for images."""

    model: str
    devices: int
    batch: int
    seq_len: int | None


SUITE: Mapping[str, SuiteTraining] = {
    "llama3-8b": SuiteTraining("llama3-8b", 64, 256, 8192),
    "llama3-70b": SuiteTraining("llama3-70b", 512, 1024, 8192),
    "deepseek-v3": SuiteTraining("deepseek-v3", 2048, 4096, 4096),
    "llama3-8b-128k": SuiteTraining("llama3-8b", 128, 64, 131_072),
    "flux1-dev": SuiteTraining("flux1-dev", 64, 1024, None),
}
"""Name -> training: a small and a large dense decoder, a mixture of experts, long sequences, and diffusion."""
