"""The header of a run's report: the settings that differ from their defaults, in the workload's unit, and the reason
for a missing MFU."""

import pytest
from msgspec.structs import replace

from trainyard.job import SCRIPT, Job
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.store.run_summary import summarise

LEDGER = Ledger(
    wall_ns=5, entries=(Entry(account=Account("compute", "matmul"), ns=5),), scope=Scope(steps=("1",), ranks=(0,))
)
SAMPLES = (Sample(step=0, rank=0, repeat=0, wall_ns=1_000_000, tokens=0, memory_bytes=1, loss=2.0),)
MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
PLAIN = Job(name="plain", model=MODEL, recipe=Recipe(seq_len=4, tokens_per_step=8, micro_batch_size=2))


def view(job):
    return view_of(analyse_run(Run(id="x", job=job, started="", state="complete", samples=SAMPLES, ledgers=(LEDGER,))))


def test_defaults_are_not_shown():
    assert view(PLAIN).subtitle == "plain · 1 × CPU · one rank · float32 · seq 4 · 8 tokens a step"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"tokens_per_step": 24}, "24 tokens a step · 3 micro-batches of 2"),
        ({"optimizer": "muon"}, "optimizer muon"),
        (
            {"activation_checkpoint": "full", "activation_checkpoint_every": 2},
            "activation_checkpoint full · activation_checkpoint_every 2",
        ),
        ({"schedule": "1f1b"}, "schedule 1f1b"),
        ({"compile": True}, "compile"),
        ({"compile": "whole"}, "compile whole"),
    ],
)
def test_non_default_settings_are_shown(change, shown):
    assert view(replace(PLAIN, recipe=replace(PLAIN.recipe, **change))).subtitle.endswith(f" · {shown}")


@pytest.mark.parametrize(
    ("name", "unit"), [("tiny-vit", "images"), ("tiny-dit", "images"), ("tiny-dlrm", "samples"), ("", "tokens")]
)
def test_workloads_count_in_their_own_unit(name, unit):
    job = PLAIN
    if name:
        preset = presets.load(name)
        job = Job(name=name, workload=preset.workload, sizes=preset.sizes, recipe=Recipe(tokens_per_step=8))
    report = view(job)
    rate = next(figure for figure in report.figures if figure.label == "throughput")
    assert rate.unit.split()[-1] == f"{unit}/s"
    assert ("seq" in report.subtitle) == (unit == "tokens")
    assert f"8 {unit}" in report.subtitle


def test_unknown_workloads_count_tokens():
    assert "8 tokens a step" in view(replace(PLAIN, workload="of-somebody-else")).subtitle


def test_scripts_note_why_mfu_is_missing():
    job = Job(name="s", workload=SCRIPT, sizes={"command": "python s.py"}, recipe=Recipe(tokens_per_step=0))
    assert "No MFU: the model FLOPs of a script are unknown." in view(job).notes
    assert not [note for note in view(PLAIN).notes if "MFU" in note]
    assert summarise(Run(id="x", job=job, started="")).no_mfu == ""
