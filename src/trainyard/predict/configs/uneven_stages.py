"""Writes the number of layers of each pipeline stage into a framework's configuration.

Megatron Core takes `--pipeline-model-parallel-layout` (its docs/api-guide, custom pipeline model parallel layout: E the
embedding, t a layer, L the loss, `|` between stages); torchtitan takes the names of each stage's modules. DeepSpeed's
stages are built by the training script, and trainyard's own runner has equal stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainyard.formats import toml
from trainyard.predict.configs.megatron import megatron_stages

_REPLACED = ("--pipeline-model-parallel-layout ", "--account-for-", "--num-layers-per-virtual-pipeline-stage ")
"""Arguments that also set the layers per stage, and are replaced."""


def megatron(arguments: str, layers_per_stage: Sequence[int]) -> str:
    """Megatron arguments, one per line. The layout is quoted, so that a shell reads it as one word."""
    lines = [line for line in arguments.splitlines() if not line.startswith(_REPLACED)]
    return "\n".join([*lines, f"--pipeline-model-parallel-layout '{megatron_stages.write(layers_per_stage)}'"]) + "\n"


def torchtitan(config: str, layers_per_stage: Sequence[int]) -> str:
    """A torchtitan configuration in TOML. `layers_per_stage`: in the order of the pipeline."""
    # First layer after each stage.
    ends = [sum(layers_per_stage[: stage + 1]) for stage in range(len(layers_per_stage))]
    names = [[f"layers.{layer}" for layer in range(end - count, end)] for count, end in zip(layers_per_stage, ends)]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "output"]
    document = toml.loads(config)
    document["parallelism"]["module_fqns_per_model_part"] = names
    return toml.dumps(document, toml.head_comment(config))


WRITERS: Mapping[str, Callable[[str, Sequence[int]], str]] = {"megatron": megatron, "torchtitan": torchtitan}
"""Framework -> function that rewrites its launch file with the given number of layers per stage."""
