"""Config.json files whose keys contradict each other, or whose weights no training starts from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.test_models import CONFIGS, LLAMA, QWEN3
from tests.models.test_published_configs import PUBLISHED
from tests.refused import refused
from trainyard.errors import BadFile
from trainyard.models import hugging_face_architectures

GEMMA3: dict[str, Any] = PUBLISHED["gemma-3-27b"].config
FP8 = {"quant_method": "fp8", "fmt": "e4m3"}


def convert(config: dict[str, Any]) -> None:
    hugging_face_architectures.convert(json.dumps(config).encode(), "some/config.json", planned=True)


@pytest.mark.parametrize(
    ("config", "change", "values"),
    [
        (LLAMA, {"model_type": "mixtral"}, ("$.model_type", "mixtral", "LlamaForCausalLM")),
        (LLAMA, {"model_type": "bert"}, ("$.model_type", "bert", "LlamaForCausalLM")),
        (LLAMA, {"model_type": "zamba2"}, ("$.model_type", "zamba2", "LlamaForCausalLM")),
        (GEMMA3, {"model_type": "gemma2"}, ("$.model_type", "gemma2", "Gemma3ForConditionalGeneration")),
        (LLAMA, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ("$.quantization_config", "gptq")),
        (LLAMA, {"quantization_config": {"quant_method": "awq"}}, ("$.quantization_config", "awq")),
        (LLAMA, {"torch_dtype": "int4"}, ("$.torch_dtype", "int4")),
        (LLAMA, {"dtype": "uint8"}, ("$.dtype", "uint8")),
        (LLAMA, {"num_local_experts": 8}, ("num_local_experts", "LlamaForCausalLM", 8)),
        (LLAMA, {"layer_types": ["full_attention"] * 5}, ("$.layer_types", 5, 32)),
        (QWEN3, {"layer_types": ["full_attention"] * 35}, ("$.layer_types", 35, 36)),
        (GEMMA3, {"text_config": {**GEMMA3["text_config"], "layer_types": []}}, ("$.text_config.layer_types", 0, 62)),
    ],
)
def test_contradiction_is_refused_with_both_values(
    config: dict[str, Any], change: dict[str, Any], values: tuple[object, ...]
) -> None:
    with refused(BadFile, "some/config.json", *values):
        convert({**config, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "my_llama"},
        {"quantization_config": FP8},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"dtype": "float8_e4m3fn"},
        {"torch_dtype": "auto"},
        {"num_local_experts": 0},
        {"layer_types": ["full_attention"] * 32},
    ],
)
def test_valid_types_and_formats_are_accepted(change: dict[str, Any]) -> None:
    convert({**LLAMA, **change})


@pytest.mark.parametrize("name", [*CONFIGS, *PUBLISHED])
def test_published_configs_with_their_model_type_are_accepted(name: str) -> None:
    config = CONFIGS.get(name) or PUBLISHED[name].config
    convert(config)
