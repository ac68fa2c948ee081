"""What tells a framework how many layers each pipeline stage has, where it can be told.

Megatron Core by `--pipeline-model-parallel-layout` (its docs/api-guide, custom pipeline model parallel layout: E the
embedding, t a layer, L the loss, `|` between stages); torchtitan by the names of each stage's modules. DeepSpeed's
stages are made in the code that calls it, and our own runner has as many layers in each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainyard.formats import toml
from trainyard.predict.configs.megatron import megatron_stages

_OTHERWISE = ("--pipeline-model-parallel-layout ", "--account-for-", "--num-layers-per-virtual-pipeline-stage ")
"""Arguments that divide layers too."""


def megatron(told: str, counts: Sequence[int]) -> str:
    """Arguments, one a line. A shell reads the layout as one word."""
    lines = [line for line in told.splitlines() if not line.startswith(_OTHERWISE)]
    return "\n".join([*lines, f"--pipeline-model-parallel-layout '{megatron_stages.write(counts)}'"]) + "\n"


def torchtitan(told: str, counts: Sequence[int]) -> str:
    """A configuration in TOML."""
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    names = [[f"layers.{layer}" for layer in range(end - count, end)] for count, end in zip(counts, ends)]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "output"]
    document = toml.loads(told)
    document["parallelism"]["module_fqns_per_model_part"] = names
    return toml.dumps(document, toml.head_comment(told))


TELLS: Mapping[str, Callable[[str, Sequence[int]], str]] = {"megatron": megatron, "torchtitan": torchtitan}
"""By framework: its launch file with so many layers in each stage."""
