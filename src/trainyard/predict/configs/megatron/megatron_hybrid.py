"""Reads and writes the layers of a hybrid model as arguments of Megatron Core's pretrain_mamba.py.

A hybrid model mixes state space (Mamba), attention and MLP layers. Its pattern has a letter for each layer, such as
`M*-`: state space, attention, MLP.
"""

from __future__ import annotations

from typing import Any

from trainyard.errors import BadFile
from trainyard.model import PARTS, Model
from trainyard.predict.configs.config_keys import ConfigKeys

_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
_IGNORED = ("is-hybrid-model", "spec", "linear-conv-kernel-dim", "mamba-mem-eff-path")


def read(keys: ConfigKeys, layers: int) -> dict[str, Any]:
    """Fields of `Model` (name -> value) for a hybrid's layers; empty for a plain decoder.

    `keys`: the arguments, by name without `--`; `layers`: the layer count in the file. Accepts the names of old and new
    versions. The sizes of a chunk and of the convolution are not arguments: 128 and 4 tokens
    (`megatron/core/ssm/mamba_mixer.py`). Raises `BadFile` for an unknown letter in the pattern, or if its length is not
    the layer count.
    """
    new, old = keys.get("hybrid-layer-pattern"), keys.get("hybrid-override-pattern")
    pattern_value = new if new is not None else old
    if pattern_value is None:
        return {}
    for key in _IGNORED:
        keys.get(key)  # requested, so that it is not reported as ignored
    pattern = str(pattern_value)
    if unknown := sorted(set(pattern) - set(PARTS)):
        raise BadFile(
            f"{keys.where}: the pattern of layers has {', '.join(map(repr, unknown))[:60]}, but a layer is one of "
            f"{', '.join(f'{letter} ({means})' for letter, means in PARTS.items())}."
        )
    if len(pattern) != layers:
        raise BadFile(f"{keys.where}: the pattern of layers has {len(pattern)} of them, and --num-layers is {layers}.")
    dim, width = keys.integer("mamba-head-dim", 64), keys.integer("hidden-size")
    return {
        "hybrid_pattern": pattern,
        "ssm_heads": keys.integer("mamba-num-heads", max(1, 2 * width // dim)),
        "ssm_head_dim": dim,
        "ssm_groups": keys.integer("mamba-num-groups", 8),
        "ssm_state_size": keys.integer("mamba-state-dim", 128),
    }


def write(model: Model) -> dict[str, object]:
    """Arguments of a hybrid's layers: name without its dashes -> value (None for a flag); empty for a plain decoder."""
    if not model.hybrid_pattern:
        return {}
    return {
        "is-hybrid-model": None,
        "hybrid-override-pattern": model.hybrid_pattern,
        "mamba-num-heads": model.ssm_heads,
        "mamba-head-dim": model.ssm_head_dim,
        "mamba-num-groups": model.ssm_groups,
        "mamba-state-dim": model.ssm_state_size,
        "spec": _SPEC,
    }
