"""The keys of one config.json: those that were read, and those of the rest that cannot be modelled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import BadFile, nearest
from trainyard.lazy_pattern import lazy_compile
from trainyard.models.typed_keys import TypedKeys
from trainyard.printable import printable
from trainyard.units import listed

_IRRELEVANT_KEYS = lazy_compile(
    # Names, special tokens, generation, caching, initialisation, storage format and provenance.
    r"_.*|architectures|auto_map|model_type|transformers_version|.*_token_id|use_cache|initializer_range|torch_dtype"
    r"|dtype|task_specific_params|output_past|output_hidden_states|output_attentions|return_dict|use_return_dict"
    r"|keys_to_ignore_at_inference|quantization_config|pretraining_tp|ep_size|label2id|id2label|num_labels"
    r"|max_position_embeddings|max_window_layers|n_ctx|summary_.*|rope_interleave|num_logits_to_keep"
    # Initialisation of a state space, and its implementation.
    r"|time_step_.*|expand|rescale_prenorm_residual|mamba_hidden_act|use_mamba_kernels|mamba_ssm_cache_dtype|mamba_dt_.*"
    # Weights of auxiliary losses, which only apply if another key enables them.
    r"|router_aux_loss_coef|aux_loss_alpha|seq_aux\Z"
)


MAX_NUMBER = 1e300
"""Bound of numbers, which may be multiplied without becoming infinite."""
_UNTIMED_KEYS = lazy_compile(
    r"rope_scaling|rope_parameters|partial_rotary_factor|.*dropout|.*_pdrop|router_jitter_noise|scale_attn.*|reorder_and_upcast_attn"
    r"|attention_bias|mlp_bias|use_bias|use_conv_bias|mamba_proj_bias|mamba_conv_bias|scoring_func|topk_method"
    r"|norm_topk_prob|.*_multiplier|logits_scaling"
)
"""Keys that are refused because they change the mathematics, though hardly the time of a step."""
_PARTS = tuple(
    (lazy_compile(pattern), part)
    for pattern, part in (
        (r".*(sliding|window|chunk|layer_types|layers_block_type).*", "attention to a part of the sequence is"),
        (r"rope_.*|.*rotary.*|alibi.*|.*position_embedding_type|no_rope_.*", "this position embedding is"),
        (r".*(multiplier|scale|scaling)", "constant factors of activations and logits are"),
        (r".*softcap(ping)?|clip_qkv|.*_limit", "bounds of activations and logits are"),
        (r".*(expert|router|moe).*", "experts are"),
        (r".*(dropout|pdrop)", "dropout is"),
        (r".*bias", "this use of biases is"),
        (r".*qk_(layer)?norm.*", "normalised queries and keys are"),
        (r".*(nextn|mtp).*", "multi-token prediction is"),
        (r".*(mamba|ssm|state|conv).*", "state spaces are"),
        (r"(vision|audio|image|video).*", "encoders of images and audio are"),
    )
)
"""Pattern of keys -> the part of a model that they configure, with its verb."""
_MOST_REFUSED = 20
"""Most keys for which a message lists reasons and a model file."""


class HuggingFaceKeys(TypedKeys):
    """The keys of a config.json. `refused`: keys that cannot be modelled, with the reason. `without`: keys to leave
    out. `planned`: whether to also leave out keys that do not change the time of a step. `prefix`: path of a nested
    table in the document, such as `text_config.`. `approximated`: with `planned`, sentences on the parts that are
    predicted differently. `unknown`: with `planned`, keys without a known meaning that are left out."""

    def __init__(
        self, values: Mapping[str, Any], where: str, without: Sequence[str], planned: bool, prefix: str = ""
    ) -> None:
        super().__init__(values, where)
        self.prefix = prefix
        self.without = without
        self.planned = planned
        self.refused: dict[str, str] = {}
        self.approximated: list[str] = []
        self.unknown: list[str] = []

    def invalid(self, key: str, expected: str) -> BadFile:
        """The error for a key whose value is missing or not `expected`, a description of valid values."""
        return BadFile(f"{self.where} at $.{self.prefix}{key}: {short(self.values.get(key))}, not {expected}.")

    def layers(self, key: str = "num_hidden_layers", default: int | None = None) -> int:
        """The number of layers, of which `limits` sets the most, because readers may list layers one by one."""
        return self.integer(key, default)

    def number(self, key: str, default: float) -> float:
        """A positive number of the config; `default` if the key is absent or null. Raises `BadFile` if it is something
        else."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value < MAX_NUMBER:
            raise self.invalid(key, "a positive number")
        return float(value)

    def must(
        self, key: str, modelled: Sequence[object], reason: str, default: object = None, predicted: str = ""
    ) -> None:
        """Refuses `key` if its value is not one of `modelled`, of the same type. `default`: the value that transformers
        uses if the key is absent or null; without a default, such a key is accepted. `reason`: of the refusal.
        `predicted`: what a plan assumes instead of another value; empty to refuse it there too."""
        value = self.get(key)
        value = default if value is None else value
        if value is not None and not any(value == choice and type(value) is type(choice) for choice in modelled):
            if predicted and self.planned:
                self.approximate(key, f"predicted with {predicted}")
            else:
                self.refuse(key, f"{reason}, and it is {short(value)}")

    def ignore(self, *keys: str) -> None:
        """Marks keys as read that do not affect the arithmetic, or whose effect is reported otherwise."""
        self.requested.update(keys)

    def approximate(self, key: str, prediction: str) -> None:
        """Records how a plan differs from the value of a key."""
        self.approximated.append(f"{self.prefix}{key} = {short(self.get(key))}: {prediction}")

    def refuse(self, key: str, reason: str) -> None:
        """Records that the key cannot be modelled; the first reason for a key counts."""
        self.refused.setdefault(key, reason)

    def check_refused(self) -> list[str]:
        """The keys that are left out: requested by `without`, or with `planned` of no effect on the time. Raises
        `BadFile` if other keys cannot be modelled, and for a requested key that can."""
        skipped = {key for key in self.refused if self.planned and _UNTIMED_KEYS.fullmatch(key)}
        for key, value in self.values.items():
            if key not in self.requested and value is not None and not _IRRELEVANT_KEYS.fullmatch(key):
                if self.planned:
                    self.unknown += [] if _UNTIMED_KEYS.fullmatch(key) else [key]
                    skipped.add(key)
                self.refuse(key, f"{_explain_unknown(key)}, and it is {short(value)}")
        for key in self.without:
            if key not in self.refused:
                hint = nearest(key, self.refused) if self.refused else "Nothing needs to be left out."
                raise BadFile(f"{self.where}: without = {key[:100]!r}, but this key is not refused.", hint)
        still_refused = [key for key in self.refused if key not in self.without and key not in skipped]
        if still_refused:
            reasons = [f"{printable(key[:100])}: {self.refused[key]}" for key in still_refused]
            raise BadFile(
                f"{self.where}: not modelled: {listed(reasons, _MOST_REFUSED, between='; ')}.",
                self._explain_leaving_out([*self.without, *still_refused]),
            )
        return list(self.refused)

    def _explain_leaving_out(self, keys: Sequence[str]) -> str:
        """The next step for a config with parts that cannot be modelled: a model file that leaves out their `keys`."""
        if len(keys) > _MOST_REFUSED:
            return "Write the dimensions of a similar model under [model] of a TOML file, and pass that."
        # A JSON string is a TOML string too.
        source, without = (json.dumps(value, ensure_ascii=False) for value in (os.path.abspath(self.where), list(keys)))
        or_job = "" if self.planned else ", or write them into a job file"
        return (
            "To leave these parts out of the model, save the following lines as model.toml, and pass it as the model"
            f"{or_job}:\n[model]\nfrom = {source}\nwithout = {without}"
        )


def _explain_unknown(key: str) -> str:
    """The part of a model that an unread key configures, by its name, as the reason of a refusal."""
    part = next((part for pattern, part in _PARTS if pattern.fullmatch(key)), "")
    return f"{part} not modelled for this architecture" if part else "unknown key, may change the arithmetic"


def short(value: object) -> str:
    """The value in at most 60 characters, for messages; `missing` for None."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
