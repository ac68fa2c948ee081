"""One config.json, whose keys are accounted for: which were asked for, and what of the rest stands in the way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import BadFile, nearest
from trainyard.models.typed_keys import TypedKeys

_SAYS_NOTHING = re.compile(
    # What it is called, which tokens are special, how it generates, caches, was begun, is stored or was made.
    r"_.*|architectures|auto_map|model_type|transformers_version|.*_token_id|use_cache|initializer_range|torch_dtype"
    r"|dtype|task_specific_params|output_past|output_hidden_states|output_attentions|return_dict|use_return_dict"
    r"|keys_to_ignore_at_inference|quantization_config|pretraining_tp|ep_size|label2id|id2label|num_labels"
    r"|max_position_embeddings|max_window_layers|n_ctx|summary_.*|rope_interleave|num_logits_to_keep"
    # How a state space begins, and which code computes it.
    r"|time_step_.*|expand|rescale_prenorm_residual|mamba_hidden_act|use_mamba_kernels|mamba_ssm_cache_dtype|mamba_dt_.*"
    # Weights of losses that are not taken, unless a key that is looked at says so.
    r"|router_aux_loss_coef|aux_loss_alpha|seq_aux\Z"
)


_COSTS_NOTHING = re.compile(
    r"rope_scaling|rope_parameters|partial_rotary_factor|.*dropout|.*_pdrop|router_jitter_noise|scale_attn.*|reorder_and_upcast_attn"
    r"|attention_bias|mlp_bias|use_bias|use_conv_bias|mamba_proj_bias|mamba_conv_bias|scoring_func|topk_method"
    r"|norm_topk_prob|.*_multiplier|logits_scaling"
)
"""What is refused because another thing would be learned, though a step takes about as long."""


class HuggingFaceKeys(TypedKeys):
    """The keys of a config.json, and those that cannot be modelled, each with the reason. `without`: keys to leave out.
    `planned`: keys that do not change the time of a step are left out too."""

    def __init__(self, said: Mapping[str, Any], where: str, without: Sequence[str], planned: bool) -> None:
        super().__init__(said, where)
        self.without = without
        self.planned = planned
        self.refused: dict[str, str] = {}

    def wrong(self, key: str, expected: str) -> BadFile:
        return BadFile(f"{self.where} at $.{key}: {short(self.said.get(key))}, not {expected}.")

    def layers(self, key: str = "num_hidden_layers", default: int | None = None) -> int:
        """Read the number of layers, which readers may list one by one."""
        return self.whole(key, default)

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value < 1e300:
            raise self.wrong(key, "a positive number")
        return float(value)

    def must(self, key: str, modelled: Sequence[object], says: str, default: object = None) -> None:
        """Refuses a key whose value is not `modelled`. `default`: what transformers takes where there is none; None
        is always modelled."""
        value = self.get(key)
        value = default if value is None else value
        if value is not None and not any(value == one and type(value) is type(one) for one in modelled):
            self.refuse(key, f"{says}, and it is {short(value)}")

    def refuse(self, key: str, says: str) -> None:
        self.refused.setdefault(key, says)

    def done(self) -> list[str]:
        """What is left out, as asked. Raises `BadFile` for the rest of what cannot be modelled."""
        passed = {key for key in self.refused if self.planned and _COSTS_NOTHING.fullmatch(key)}
        for key, value in self.said.items():
            if key not in self.asked and value is not None and not _SAYS_NOTHING.fullmatch(key):
                passed |= {key} if self.planned else set()
                self.refuse(key, f"it is not known here, may change the arithmetic, and is {short(value)}")
        for key in self.without:
            if key not in self.refused:
                hint = nearest(key, self.refused) if self.refused else "Nothing needs to be left out."
                raise BadFile(f"{self.where}: without = {key[:100]!r}, but that is not what stands in the way.", hint)
        missing = [key for key in self.refused if key not in self.without and key not in passed]
        if missing:
            reasons = "; ".join(f"{key[:100]}: {self.refused[key]}" for key in missing[:20])
            keys = ", ".join(f'"{key[:100]}"' for key in self.refused)
            raise BadFile(
                f"{self.where}: not modelled here: {reasons}.",
                f"To train the model without that, add without = [{keys[:1000]}] beside `from`.",
            )
        return list(self.refused)


def short(value: object) -> str:
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
