"""Contradictions between keys of a config.json, which name different models or weights that no training starts from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from trainyard.errors import BadFile
from trainyard.models.hugging_face_config import HuggingFaceKeys, short

_CLASS_SUFFIXES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_NO_DECODERS = frozenset(
    {"albert", "bart", "bert", "clip", "deberta", "debertav2", "distilbert", "electra", "mbart", "mt5", "roberta", "t5",
     "vit", "whisper", "xlmroberta"}
)  # fmt: skip
"""Values of `model_type`, without underscores, of encoders and of encoders with a decoder."""
_INFERENCE_FORMATS = ("gptq", "awq", "aqlm", "auto-round", "spqr", "vptq")
"""Values of `quant_method` for weights of less than 8 bits that are only made from trained ones, for inference."""
_FLOATS = re.compile(r"(torch\.)?(auto|b?float\d*(_\w+)?|half|double)")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


def family(architecture: str) -> str:
    """The name of an architecture without the part that all have: `Llama`."""
    for suffix in _CLASS_SUFFIXES:
        architecture = architecture.removesuffix(suffix)
    return architecture


def check_model_type(config: HuggingFaceKeys, architecture: str, known: Iterable[str]) -> None:
    """Raises `BadFile` if `model_type` is that of another of the `known` architectures than `architecture`, or not that
    of a decoder. A type of the model's own code, such as `kimi_k2`, does not contradict the architecture."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return
    other_types = _NO_DECODERS | {family(name).lower() for name in known}
    stated = re.sub("[^a-z0-9]", "", model_type.lower()).removesuffix("text")
    if stated in other_types - {family(architecture).lower()}:
        raise BadFile(
            f"{config.where} at $.{config.prefix}model_type: {short(model_type)}, but $.architectures is "
            f"{architecture}, of another family of models.",
            "Correct the one that is wrong.",
        )


def check_formats(config: HuggingFaceKeys) -> None:
    """Raises `BadFile` for weights that no training starts from: quantized for inference, or not floating-point."""
    quantization = config.get("quantization_config")
    method = cast("dict[str, Any]", quantization).get("quant_method") if isinstance(quantization, dict) else None
    if isinstance(method, str) and method.lower() in _INFERENCE_FORMATS:
        raise BadFile(
            f"{config.where} at $.{config.prefix}quantization_config: quant_method is {short(method)}, a format for "
            "inference that training does not start from.",
            "Pass the config.json of the model before quantization, or remove quantization_config.",
        )
    for key in ("torch_dtype", "dtype"):
        dtype = config.get(key)
        if isinstance(dtype, str) and not _FLOATS.fullmatch(dtype):
            raise BadFile(
                f"{config.where} at $.{config.prefix}{key}: {short(dtype)} is not a floating-point format, and weights "
                "are trained in one.",
                "Use bfloat16, float16 or float32; quantization for fine-tuning: plan --fine-tune qlora.",
            )


def check_layers(config: HuggingFaceKeys, architecture: str) -> None:
    """Raises `BadFile` if `layer_types` does not list each layer. Refuses experts that the architecture does not have,
    which no reader of the config has requested."""
    listed, layers = config.values.get("layer_types"), config.values.get("num_hidden_layers")
    if isinstance(listed, list) and isinstance(layers, int) and len(cast("list[Any]", listed)) != layers:
        raise BadFile(
            f"{config.where} at $.{config.prefix}layer_types: {len(cast('list[Any]', listed))} layers, but "
            f"num_hidden_layers is {layers}.",
            "List one kind per layer, or correct num_hidden_layers.",
        )
    for key in _EXPERT_COUNTS:
        count = config.values.get(key)
        if key not in config.requested and isinstance(count, int) and count > 1:
            config.refuse(key, f"{architecture} ($.architectures) has no experts, and it is {short(count)}")
            config.ignore(key)
