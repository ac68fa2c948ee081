"""Names of models and machines as people type them, and suggestions for unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import machine, machine_aliases, named_sizes
from trainyard.errors import UnknownName
from trainyard.models import model_aliases, presets


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama2-7b", "llama2-7b"), ("llama-2-70b", "llama2-70b"), ("meta-llama/Llama-2-13b-hf", "llama2-13b"),
        ("llama-3.1-8b", "llama3-8b"), ("meta-llama/Llama-3.1-8B", "llama3-8b"), ("Llama3_8B", "llama3-8b"),
        ("Meta-Llama-3.1-405B-Instruct", "llama3-405b"), ("llama 3.3 70b", "llama3-70b"), ("mistral-7b", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"), ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"), ("google/gemma-2-9b-it", "gemma2-9b"), ("Gemma-3-27B", "gemma3-27b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"), ("GPT-3-175B", "gpt3-175b"),
    ],
)  # fmt: skip
def test_model_is_found_by_the_name_people_type(typed: str, name: str) -> None:
    assert (presets.load(typed).model or {})["name"] == name


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100-sxm", "h100"), ("H100_SXM5_80GB", "h100"), ("NVIDIA-H100", "h100"), ("a100-80gb", "a100"),
        ("A100 SXM4 40GB", "a100-40gb"), ("mi300x-oam", "mi300x"), ("AMD Instinct MI300X", "mi300x"),
        ("trainium2", "trn2"), ("TPUv5p", "tpu-v5p"), ("dgx-b200", "b200"),
    ],
)  # fmt: skip
def test_machine_is_found_by_the_name_people_type(typed: str, name: str) -> None:
    assert machine.load(typed).name == name


@pytest.mark.parametrize(
    ("unknown", "suggested"),
    [
        ("llama3-7b", "llama3-8b"), ("llama3-80b", "llama3-70b"), ("llama2-8b", "llama2-7b"),
        ("llama-3.2-8b", "llama3-8b"), ("qwen2.5-14b", "qwen2.5-7b"), ("gpt-oss-100b", "gpt-oss-120b"),
        ("gemma2-11b", "gemma2-9b"), ("mixtral-8x6b", "mixtral-8x7b"), ("tinny", "tiny"),
        ("llama3-8bb", "llama3-8b"), ("llama3-70bb", "llama3-70b"), ("llama3-8", "llama3-8b"),
        ("Llama_3-8", "llama3-8b"), ("llama3-80", "llama3-70b"), ("mixtral-8x7", "mixtral-8x7b"),
        ("qwen3-32b-a3b", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_suggestion_is_near_in_family_and_size(unknown: str, suggested: str) -> None:
    with refused(UnknownName, unknown, repr(suggested)):
        presets.load(unknown)


@pytest.mark.parametrize("unknown", ["gpt-4", "gpt-5", "llama5", "deepseek-v4"])
def test_another_version_of_a_family_is_not_suggested(unknown: str) -> None:
    assert "Did you mean" not in named_sizes.suggest(unknown, presets.known())


@pytest.mark.parametrize("unknown", ["Qwen/Qwen3-32B", "qwen3-30b", "Qwen2.5-72B"])
def test_dense_models_are_not_suggested_mixtures_of_experts(unknown: str) -> None:
    assert named_sizes.suggest(unknown, presets.known()).startswith("Known of a similar name: ")


@given(st.sampled_from(["llama2", "llama-3.1", "qwen3", "gemma2", "gpt-oss", "mistral", "other"]), st.integers(1, 2000))
def test_suggested_size_is_within_a_factor_of_three(family: str, billions: int) -> None:
    hint = named_sizes.suggest(f"{family}-{billions}b", presets.known())
    if hint.startswith("Did you mean "):
        size = named_sizes.parse(hint.split("'")[1]).size
        assert 1 / 3.001 <= size / (billions * 1e9) <= 3.001


@pytest.mark.parametrize("typed", ["folder/llama3-8b", "./llama3-8b", "h100-pcie", "llama3-8b.toml", "-", ""])
def test_other_paths_and_devices_are_not_known_names(typed: str) -> None:
    with refused(UnknownName):
        presets.load(typed)
    with refused(UnknownName):
        machine.load(typed)


def test_own_file_comes_before_an_alias(tmp_path: Path) -> None:
    text = presets.known()["tiny"].read_text("utf-8")
    (tmp_path / "llama-3.1-8b").write_text(text)
    assert (presets.load("llama-3.1-8b", tmp_path).model or {})["name"] == "tiny"


def test_aliases_stand_for_files() -> None:
    assert set(model_aliases.ALIASES.values()) <= set(presets.known())
    assert set(machine_aliases.ALIASES.values()) <= set(machine.known())
    spellings = [named_sizes.canonical(name) for name in presets.known()]
    assert len(set(spellings)) == len(spellings)
    assert not set(spellings) & {named_sizes.canonical(alias) for alias in model_aliases.ALIASES} - set(spellings)
