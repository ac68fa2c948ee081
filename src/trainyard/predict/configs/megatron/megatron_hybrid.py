"""A hybrid's layers in the arguments of Megatron Core's pretrain_mamba.py, both ways."""

from __future__ import annotations

from typing import Any

from trainyard.errors import BadFile
from trainyard.job import PARTS, Model
from trainyard.predict.configs.config_keys import ConfigKeys

_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
_BESIDE = ("is-hybrid-model", "spec", "linear-conv-kernel-dim", "mamba-mem-eff-path")


def read(given: ConfigKeys, layers: int) -> dict[str, Any]:
    """Nothing of a decoder. The names are those of old and of new versions; how many tokens a chunk and a convolution
    has is no argument: 128 and 4 (`megatron/core/ssm/mamba_mixer.py`)."""
    new, old = given.get("hybrid-layer-pattern"), given.get("hybrid-override-pattern")
    said = new if new is not None else old
    if said is None:
        return {}
    for key in _BESIDE:
        given.get(key)
    pattern = str(said)
    if unknown := sorted(set(pattern) - set(PARTS)):
        raise BadFile(
            f"{given.where}: the pattern of layers has {', '.join(map(repr, unknown))[:60]}, but a layer is one of "
            f"{', '.join(f'{letter} ({means})' for letter, means in PARTS.items())}."
        )
    if len(pattern) != layers:
        raise BadFile(f"{given.where}: the pattern of layers has {len(pattern)} of them, and --num-layers is {layers}.")
    dim, width = given.whole("mamba-head-dim", 64), given.whole("hidden-size")
    return {
        "pattern": pattern,
        "space_heads": given.whole("mamba-num-heads", max(1, 2 * width // dim)),
        "space_dim": dim,
        "space_groups": given.whole("mamba-num-groups", 8),
        "state": given.whole("mamba-state-dim", 128),
    }


def write(model: Model) -> dict[str, object]:
    """Nothing of a decoder."""
    if not model.pattern:
        return {}
    return {
        "is-hybrid-model": None,
        "hybrid-override-pattern": model.pattern,
        "mamba-num-heads": model.space_heads,
        "mamba-head-dim": model.space_dim,
        "mamba-num-groups": model.space_groups,
        "mamba-state-dim": model.state,
        "spec": _SPEC,
    }
