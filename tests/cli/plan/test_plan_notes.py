"""Notes of `trainyard plan`: frameworks that do not run on a device, contexts, padded vocabularies, pods, legends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.refused import missing_values
from trainyard import machine as machines
from trainyard.cli.main import answer
from trainyard.predict.inputs import constant_sets, framework_devices
from trainyard.predict.inputs.framework_support import FRAMEWORKS

STEP = ("--devices", "8", "--batch", "16", "--seq-len", "128")
ADAPTERS = ("llama3-8b", "--devices", "8", "--batch", "64", "--seq-len", "4096")


def plans(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert answer(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def notes_with(capsys: pytest.CaptureFixture[str], text: str, *words: str) -> list[str]:
    return [note for note in plans(capsys, *words).get("notes", ()) if text in note]


def screen(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["plan", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("framework", "machine", "values"),
    [
        ("megatron", "tpu-v5p", ["Megatron Core does not run on Google TPU v5p"]),
        ("megatron", "trn2", ["NxD Training", "--for torchtitan"]),
        ("torchtitan", "trn1", ["Trn2", "Trn3", "does not run"]),
        ("torchtitan", "trn2", ["torchtitan-neuron", "runs on"]),
        ("deepspeed", "tpu-v6e", ["4676"]),
        ("trainyard", "trn3", ["Our own runner", "--for torchtitan"]),
        ("megatron", "h100", []),
        ("torchtitan", "mi300x", []),
    ],
)
def test_a_framework_that_does_not_run_on_the_device_is_noted(
    framework: str, machine: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = notes_with(capsys, "run", "tiny", "--machine", machine, "--for", framework, *STEP)
    assert len(notes) == bool(values)
    assert missing_values("".join(notes), *values) == []


@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_a_framework_that_does_not_train_adapters_is_not_suggested(
    framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = (*ADAPTERS, "--machine", "trn2", "--for", framework)
    assert len(notes_with(capsys, "--for torchtitan", *device)) == 1
    assert notes_with(capsys, "--for torchtitan", *device, "--fine-tune", "lora") == []


@pytest.mark.parametrize(
    ("machine", "values"),
    [("h100", ["--for deepspeed", "--for megatron"]), ("trn2", ["--for deepspeed", "port", "no framework"])],
)
def test_the_refusal_of_adapters_states_whether_another_framework_runs_there(
    machine: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*ADAPTERS, "--machine", machine, "--fine-tune", "lora")
    assert answer(["plan", *words, "--for", "torchtitan"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert missing_values(error, "torchtitan does not train adapters", *values) == []
    assert ("port" in error) == ("port" in values)
    assert answer(["plan", *words, "--for", "deepspeed"]) == 0


@pytest.mark.parametrize(("machine", "count"), [("h100", 1), ("trn2", 0)])
def test_megatron_is_suggested_for_adapters_on_devices_it_runs_on(
    machine: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*ADAPTERS, "--machine", machine, "--fine-tune", "lora")
    assert len(notes_with(capsys, "pass --for megatron", *words)) == count


@pytest.mark.parametrize(("devices", "values"), [("250", ["250 of the 256 devices", "16x16"]), ("64", ["has 8x8"])])
def test_the_slice_of_a_torus_has_its_number_of_devices(
    devices: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tiny", "--machine", "tpu-v5e", "--devices", devices, "--batch", devices, "--seq-len", "128")
    (note,) = notes_with(capsys, "The job has", *words)
    assert missing_values(note, *values) == []
    assert ("of the" in note.partition("The job has")[2]) == (len(values) > 1)


@pytest.mark.parametrize(
    ("machine", "devices", "nearest"),
    [
        ("tpu-v5e", 7, "4 and 8"),
        ("tpu-v5p", 96, "64 and 128"),
        ("tpu-v5e", 8, ""),
        ("tpu-v5p", 128, ""),
        ("trn2", 7, ""),
    ],
)
def test_a_slice_that_cannot_be_rented_is_noted(
    machine: str, devices: int, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tiny", "--machine", machine, "--devices", str(devices), "--batch", str(4 * devices), "--seq-len", "128")
    notes = " ".join(notes_with(capsys, "rented", *words))
    assert (f"No slice of {devices} devices can be rented; the next have {nearest}." in notes) == bool(nearest)
    assert bool(notes) == bool(nearest)


def test_every_exception_names_a_known_framework_and_machine() -> None:
    vendors = {machines.load(name).device.vendor for name in machines.known()} | {"cpu"}
    for known in framework_devices.known():
        assert known.framework in FRAMEWORKS
        assert known.vendor in vendors
        assert known.instead in ("", *FRAMEWORKS)
        assert known.source
        for name in known.machines:
            machine = machines.load(name)
            assert machine.device.vendor == known.vendor
            # the framework that is named instead runs there
            assert not known.instead or (framework_devices.find(known.instead, machine) or known).runs


def test_sequences_beyond_the_context_are_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--machine", "h100", "--devices", "8", "--batch", "8")
    assert not notes_with(capsys, "context", "gpt2-xl", *words, "--seq-len", "1024")
    (note,) = notes_with(capsys, "context", "gpt2-xl", *words, "--seq-len", "2048")
    assert missing_values(note, "2,048 tokens", "1,024 tokens", "embedding of positions") == []
    config = tmp_path / "config.json"
    keys = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 100,
    }  # fmt: skip
    config.write_text(json.dumps(keys))
    (note,) = notes_with(capsys, "context", str(config), *words, "--seq-len", "128")
    assert missing_values(note, "128 tokens", "100 tokens", "max_position_embeddings", str(config)) == []
    config.write_text(json.dumps(keys | {"max_position_embeddings": 128}))
    assert not notes_with(capsys, "context", str(config), *words, "--seq-len", "128")


ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 2 --bf16 --use-flash-attn "
    "--attention-dropout 0 --hidden-dropout 0 "
)


@pytest.mark.parametrize(
    ("arguments", "model", "values"),
    [
        ("--vocab-size 1001", None, ["1,001", "1,024", "128 x tp 2"]),
        ("--vocab-size 1001 --make-vocab-size-divisible-by 3", None, ["1,001", "1,002", "3 x tp 2"]),
        ("--vocab-size 1024", None, []),
        ("--padded-vocab-size 1030", None, []),
        ("--make-vocab-size-divisible-by 100", "tiny", ["256", "400", "100 x tp 2"]),
    ],
)
def test_a_checked_file_pads_the_vocabulary_as_it_says(
    arguments: str, model: str | None, values: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "args.txt"
    file.write_text(ARGUMENTS + arguments)
    chosen = ("--model", model) if model else ()
    document = plans(capsys, "check", str(file), *chosen, "--machine", "h100", "--devices", "8")
    notes = [note for note in document.get("notes", ()) if "vocabulary" in note]
    assert len(notes) == bool(values)
    assert missing_values("".join(notes), *values) == []
    if values:
        assert f"{document['choices'][0]['plan']['job']['model']['vocab']:,}" == values[1]


def test_oversubscription_without_effect_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tiny", "--machine", "h100", "--devices", "16", "--batch", "16", "--seq-len", "128")
    for nodes in (2, 4):
        flags = ("--oversubscription", "4", "--pod-nodes", str(nodes))
        assert notes_with(capsys, "no effect", *words, *flags)
    more = ("tiny", "--machine", "h100", "--devices", "32", "--batch", "32", "--seq-len", "128")
    assert not notes_with(capsys, "no effect", *more, "--oversubscription", "4", "--pod-nodes", "2")
    # Without effect on the step, without effect on its interval.
    words = (
        "llama3-8b",
        "--machine",
        "h100",
        "--devices",
        "16",
        "--batch",
        "16",
        "--seq-len",
        "4096",
        "--for",
        "megatron",
    )
    for nodes in (1, 2):
        flags = ("--oversubscription", "4", "--pod-nodes", "2") if nodes == 2 else ()
        assert plans(capsys, *words, *flags)["choices"][0]["plan"]["calibrated"]


def test_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "tiny", "--machine", "h100", "--devices", "1", "--batch", "1", "--seq-len", "1")
    assert "1 sequence of 1 token per step" in text


def test_legend_explains_expert_parallelism(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("mixtral-8x7b", "--machine", "h100", "--devices", "64", "--batch", "128", "--seq-len", "4096", "--for",
             "megatron")  # fmt: skip
    for ep, has_note in ((8, True), (1, False)):
        for full in ((), ("--full",)):
            assert ("ep: experts" in screen(capsys, *words, "--fix", f"ep={ep}", *full)) == has_note


def test_a_long_training_names_other_frameworks(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "llama3-8b",
        "--machine",
        "h100",
        "--devices",
        "64",
        "--batch",
        "256",
        "--seq-len",
        "8192",
        "--tokens",
        "1e12",
    )
    assert notes_with(capsys, "--for megatron", *words)
    assert not notes_with(capsys, "--for megatron", *words, "--for", "megatron")


def test_sustained_rates_are_noted_with_the_rates_that_they_replace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.toml"
    rates = '\n[device.sustained]\nbfloat16 = { value = 6e14, unit = "FLOP/s", source = "ten minutes" }\n'
    file.write_text(machines.known()["h100"].read_text("utf-8") + rates, "utf-8")
    (note,) = notes_with(capsys, "600.00 TFLOP/s", "tiny", "--machine", str(file), "--for", "megatron", *STEP)
    matmul = constant_sets.choose(machines.load("h100"), "megatron").values().matmul
    fitted = f"{machines.load('h100').device.peak['bfloat16'].value * matmul / 1e12:.2f} TFLOP/s"
    assert missing_values(note, "bfloat16", "ten minutes", fitted) == []


def test_settings_of_all_layouts_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--for", "megatron", "--chunked-loss", "--moments-dtype", "bfloat16")
    assert (
        len(
            notes_with(capsys, "--moments-dtype bfloat16, --chunked-loss", "tiny", "--machine", "h100", *options, *STEP)
        )
        == 1
    )
    assert notes_with(capsys, "All layouts have", "tiny", "--machine", "h100", *STEP) == []


MIXTRAL = ("mixtral-8x7b", "--machine", "h100", "--devices", "64", "--batch", "256", "--seq-len", "4096", "--for",
           "megatron")  # fmt: skip


def test_settings_of_some_layouts_are_noted_with_these(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--recompute-modules", "layernorm", "--chunked-loss", "--expert-imbalance", "1.5")
    assert notes_with(capsys, "All layouts have --chunked-loss.", *MIXTRAL, *options)
    assert notes_with(capsys, "Layouts with ep above 1 have --expert-imbalance 1.5.", *MIXTRAL, *options)
    assert notes_with(
        capsys, "selective activation checkpointing have --recompute-modules layernorm.", *MIXTRAL, *options
    )


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--recompute-modules", "layernorm", "--fix", "activation_checkpoint=full"), ("activation_checkpoint=full",)),
        (("--overlap-dispatch", "--fix", "activation_checkpoint=full"), ("--overlap-dispatch", "full")),
        (("--overlap-dispatch", "--fix", "ep=1"), ("--overlap-dispatch", "--fix ep=1")),
        (("--dispatch-dtype", "float8", "--fix", "ep=1"), ("--dispatch-dtype", "--fix ep=1")),
        (("--expert-imbalance", "2", "--fix", "ep=1"), ("--expert-imbalance", "--fix ep=1")),
        (("--expert-imbalance", "5"), ("from 1 to 4", "2 of 8")),
        (("--expert-imbalance", "0.5"), ("from 1 to 4",)),
        (("--optimizer", "muon", "--fix", "offload=1"), ("--optimizer muon", "--fix offload=1")),
        (("--recompute-modules", ","), ("--recompute-modules ,", "layernorm")),
    ],
    ids=" ".join,
)
def test_settings_without_effect_are_refused(
    words: tuple[str, ...], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *MIXTRAL, *words]) == 2
    assert missing_values(capsys.readouterr().err, *values) == []


def test_the_screen_names_the_framework(capsys: pytest.CaptureFixture[str]) -> None:
    for framework in ("trainyard", "torchtitan"):
        assert f"Framework: {framework}." in screen(capsys, "tiny", "--machine", "h100", "--for", framework, *STEP)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["gpt3-175b", "--machine", "trn2", "--devices", "512", "--batch", "1536", "--seq-len", "2048"],
         ["Trainium2", "trn1"]),
        (["mixtral-8x7b", "--machine", "h100", "--devices", "512", "--batch", "1024", "--seq-len", "4096",
          "--for", "torchtitan"], ["experts", "FSDP", "h200"]),
    ],
)  # fmt: skip
def test_the_reason_names_the_machines_and_the_software_of_the_constants(
    words: list[str], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reason = plans(capsys, *words)["choices"][0]["plan"]["uncalibrated_because"]
    assert missing_values(reason, *values) == []


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("--machine", "h100"), "trainyard plan measure MODEL:"),
        (("--machine", "h100", "--for", "megatron"), "trainyard plan measure MODEL --for megatron --out-dir FOLDER"),
        (
            ("--machine", "trn2", "--for", "torchtitan"),
            "trainyard plan measure MODEL --for torchtitan --out-dir FOLDER",
        ),
        (("--machine", "trn2"), ""),
        (("--machine", "tpu-v5p", "--for", "megatron"), ""),
    ],
)
def test_ties_are_measured_with_a_framework_that_runs(
    words: tuple[str, ...], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = screen(capsys, "llama3-8b", *words, "--devices", "16", "--batch", "64", "--seq-len", "4096")
    assert "Tied:" in shown
    assert step in shown
    assert ("plan measure" in shown) == bool(step)
