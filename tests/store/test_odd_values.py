"""Well-formed files whose values no reader can use: each was found by fuzzing, and is refused."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refused import refused
from tests.trace.readers import reader_fixtures as fixtures
from trainyard import job_file, ledger, machine
from trainyard.compare.history import accepted_changes
from trainyard.compare.history.sources import series
from trainyard.errors import BadFile, BadInput, BadJob, BadLedger
from trainyard.launch.supervisor import event_log
from trainyard.models import hugging_face_architectures, presets
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import CommandArguments
from trainyard.predict.inputs import constant_sets
from trainyard.report.plans import plans_file
from trainyard.run.chaos import fault_plan
from trainyard.store import run_folder as store
from trainyard.trace.readers.nsys import Nsys

DIGITS = "9" * 5000
DEEP = "[" * 2000 + "]" * 2000
TOML: dict[str, Callable[[Path], object]] = {
    "job": job_file.load,
    "machine": lambda path: machine.load(str(path)),
    "model": lambda path: presets.load(path.name, path.parent),
    "constants": constant_sets.load,
    "accepted changes": accepted_changes.read,
    "faults": fault_plan.load,
    "torchtitan": lambda path: detect_format.read(path.read_bytes(), "x", CommandArguments()),
}


@pytest.mark.parametrize("value", [DIGITS, DEEP], ids=["digits", "nesting"])
@pytest.mark.parametrize("reader", TOML)
def test_toml_beyond_python_limits_is_refused(tmp_path: Path, reader: str, value: str) -> None:
    path = tmp_path / "file.toml"
    path.write_text(f"[training]\nsteps = {value}\n")
    with pytest.raises(BadInput):
        TOML[reader](path)


@pytest.mark.parametrize("account", [5, None, True, ["comm"], {}])
def test_account_that_is_not_text_is_refused(account: object) -> None:
    document = {"ledgers": [{"wall_ns": 1, "entries": [{"account": account, "ns": 1}]}]}
    with refused(BadLedger, type(account).__name__, "kind/what@group"):
        ledger.from_json(json.dumps(document).encode())


@pytest.mark.parametrize("text", [f"[1{'0' * 400}]", f'{{"points": {DEEP}}}', DEEP])
def test_series_beyond_floats_or_the_stack_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "series.json"
    path.write_text(text)
    with pytest.raises(BadFile):
        series.load(path, "value")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen2ForCausalLM", "JambaForCausalLM", "BambaForCausalLM"])
def test_model_of_billions_of_layers_is_refused(name: str) -> None:
    config = {"architectures": [name], "num_hidden_layers": 2**31, "hidden_size": 64, "intermediate_size": 64,
              "num_attention_heads": 4, "vocab_size": 64}  # fmt: skip
    with refused(BadFile, "config.json", "$.num_hidden_layers", 2**31):
        hugging_face_architectures.model(json.dumps(config).encode(), "config.json")


def test_long_list_of_attention_layers_is_read_at_once() -> None:
    config = {"architectures": ["BambaForCausalLM"], "num_hidden_layers": 10_000, "hidden_size": 64,
              "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64, "mamba_n_heads": 4,
              "attn_layer_indices": [0] * 3_000_000}  # fmt: skip
    assert hugging_face_architectures.model(json.dumps(config).encode(), "config.json")["layers"] == 20_000


def test_job_with_too_many_digits_names_the_file(tmp_path: Path) -> None:
    with refused(BadJob, "job.toml"):
        job_file.parse(f"name = {DIGITS}", "job.toml")


NESTED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "run": ("run.json", lambda path: store.read_head(path.parent)),
    "samples": ("samples/rank0.jsonl", lambda path: store.read_samples(path.parents[1])),
    "ledgers": ("ledgers.json", lambda path: ledger.from_json(path.read_bytes())),
    "plans": ("plans.json", plans_file.read),
}


@pytest.mark.parametrize("reader", NESTED)
def test_json_nested_beyond_the_stack_is_refused(tmp_path: Path, reader: str) -> None:
    name, read = NESTED[reader]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"schema": "{plans_file.SCHEMA}", "ledgers": [{{"x": {DEEP}}}], "x": {DEEP}}}\n\n')
    with pytest.raises(BadInput):
        read(path)


def test_line_of_events_nested_beyond_the_stack_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / event_log.PART).mkdir()
    (tmp_path / event_log.PART / "rank0.jsonl").write_text(f'{{"x": {DEEP}}}\n{{"what": "loaded", "at": 1}}\n')
    assert [event.at for event in event_log.read(tmp_path)] == [1]


def test_refused_database_prints_no_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the host's name ends in the middle of a table, whose cursor then outlives the database."""
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: dropped.append(ignored.exc_value))
    path = fixtures.write_nsys(tmp_path / "idle.sqlite", TARGET_INFO_SYSTEM_ENV=[("Hostname", "node-a"), ("x", "y")])
    with refused(BadFile, path):
        Nsys().read(path)
    gc.collect()
    assert not dropped
