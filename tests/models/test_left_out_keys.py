"""Keys of a config.json that are not modelled, and the model file that leaves them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_models import LLAMA
from tests.refused import refused
from trainyard.errors import BadFile, BadInput
from trainyard.models import presets

UNMODELLED: dict[str, Any] = {
    "hidden_act": "gelu",
    "attention_dropout": 0.1,
    "logit_scale": 0.5,
    "final_logit_softcapping": 30.0,
    'a "key"\n': 1,
}


@pytest.mark.parametrize("planned", [True, False])
def test_printed_model_file_leaves_the_keys_out(planned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **UNMODELLED}), "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadFile) as caught:
        presets.take("config.json", "model", planned=planned)
    listed = ["hidden_act"] if planned else list(UNMODELLED)
    assert all(f"{key.splitlines()[0]}" in caught.value.message for key in listed)
    text = caught.value.next_step
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "model.toml"
    path.write_text(text[text.index("[model]\n") :], "utf-8")
    taken = presets.take(str(path), "model", planned=planned)
    assert (taken.keys["hidden_size"], taken.keys["mlp"]) == (4096, "swiglu")
    assert {*taken.ignored, *taken.unknown} == (set(UNMODELLED) - {"hidden_act"} if planned else set())


def test_plan_states_what_a_left_out_activation_is_predicted_as(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "hidden_act": "gelu_new"}), "utf-8")
    (sentence,) = presets.take(str(path), "model", ["hidden_act"], planned=True).approximated
    assert all(word in sentence for word in ("hidden_act", "gelu_new", "SwiGLU", f"{32 * 4096 * 14336:,}"))


def test_keys_of_a_model_file_override_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nfrom = "config.json"\nlayers = 3', "utf-8")
    assert presets.take(str(path), "model").keys["layers"] == 3


@pytest.mark.parametrize(
    ("source", "values"), [('"mine.toml"', ["mine.toml"]), ('"llama3-8b"', ["llama3-8b"]), ("3", [3])]
)
def test_model_file_takes_from_a_config_only(source: str, values: list[object], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[model]\nfrom = {source}", "utf-8")
    with pytest.raises(BadInput) as caught:
        presets.take(str(path), "model")
    assert all(str(value) in str(caught.value) for value in ("$.model.from", *values))


def test_reason_names_the_part_that_is_not_modelled(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "clip_qkv": 8.0, "attn_logit_softcapping": 50.0, "new": 1}), "utf-8")
    with refused(BadFile, "clip_qkv", 8.0, "bounds", "new", "unknown"):
        presets.take(str(path), "model")
