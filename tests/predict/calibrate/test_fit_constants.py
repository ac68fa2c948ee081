"""Constants of a machine, fitted to its probes and to runs on it."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import missing_values, refused
from trainyard import machine
from trainyard.api.probe_machine import fit, timed_call
from trainyard.cli.probe import command
from trainyard.errors import BadInput, UnknownName
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.machine import Claim
from trainyard.model import Model
from trainyard.predict.calibrate import fit_constants, machine_file, probed_machine
from trainyard.predict.calibrate.least_squares import solve
from trainyard.predict.calibrate.measured_run import MeasuredRun
from trainyard.predict.calibrate.probed_machine import COLLECTIVES, ProbedTime
from trainyard.predict.inputs import cases, constant_sets, hardware, machine_model
from trainyard.predict.inputs.constants import SHARES, Constants
from trainyard.predict.inputs.prediction_interval import interval_of
from trainyard.predict.time import layer, predicted_ledger, step
from trainyard.predict.time.layer import product
from trainyard.predict.time.shapes import Product
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen
from trainyard.report.plans import probe_tables
from trainyard.report.plans.probe_results import ProbedMachine

SEEN = DeviceSeen(index=0, name="a CPU", vendor="cpu", memory_bytes=16 * 10**9, facts={"cores": "2"})


def as_probed(peak=80e9, wire=0.8e9, latency=4e-4, ranks=2):
    """Probes of a machine whose products and messages take exactly the times of a model."""
    probes = [ProbedTime("launch", (4,), 5e-6, 4e-6, 6e-6)]
    for size in (1 << 20, 1 << 26):
        probes.append(ProbedTime("copy", (size,), size / 20e9, size / 21e9, size / 19e9))
    for m in (64, 512, 2048):
        for k in (64, 512, 2048):
            seconds = 2 * m * m * k / peak * (1 + 10 / m) * (1 + 4 / m) * (1 + 6 / k) + 5e-6
            probes.append(ProbedTime("matmul", (m, m, k), seconds, seconds, seconds))
    for tokens in (256, 1024):
        forward = 2 * 4 * tokens**2 * 64 / (peak / 2)
        probes.append(ProbedTime("attention", (tokens, 64, 0), forward, forward, forward))
        probes.append(ProbedTime("attention", (tokens, 64, 1), 2.5 * forward, forward, forward))
    for kind in COLLECTIVES if ranks > 1 else ():
        for size in (1 << 12, 1 << 20, 1 << 26):
            part = size if kind == "send" else (2 if kind == "all_reduce" else 1) * size * (ranks - 1) / ranks
            seconds = part / wire + (2 if kind == "all_reduce" else 1) * latency
            probes.append(ProbedTime(kind, (size,), seconds, seconds, seconds))
    return probes


def test_probed_machine_recovers_rates_and_round_trips(tmp_path):
    probed = probed_machine.machine("here", SEEN, 2, "float32", as_probed())
    assert probed.device.memory.value == 8e9
    assert probed.device.bandwidth.value == pytest.approx(20e9)
    assert probed.intra_node.bandwidth.value == pytest.approx(0.8e9, rel=0.05)
    fitted = constant_sets.choose(probed, "fsdp").values()
    for tokens in (256, 1024):
        attained = layer.attention_share(fitted, cases.column(tokens), cases.column(64), layer.CAUSAL_SHARE)
        assert attained[0] * probed.device.peak["float32"].value == pytest.approx(40e9, rel=0.1)
    assert fitted.attention_backward == pytest.approx(2.5)
    assert fitted.intra_node_s == pytest.approx(4e-4, rel=0.2)
    where = hardware.of_machine(probed, "float32")
    for probe in as_probed():
        if probe.what == "matmul":
            m, n, k = (cases.column(size) for size in probe.size)
            assert product(where, fitted, Product(m, n, k))[0] == pytest.approx(probe.seconds, rel=0.1)
    path = tmp_path / "here.toml"
    path.write_text(machine_file.write(probed, "Written by a test."))
    assert machine.load(str(path)) == probed


def test_probed_attention_depends_on_length_and_channels():
    truth = Constants()._replace(attention=0.5, attention_length=1500.0, attention_channels=20.0)
    sizes = ((256, 64), (1024, 64), (1024, 128), (4096, 128))
    shares = [
        float(layer.attention_share(truth, cases.column(tokens), cases.column(channels), layer.CAUSAL_SHARE)[0])
        for tokens, channels in sizes
    ]
    probes = [probe for probe in as_probed() if probe.what != "attention"]
    peak = max(probe.rate for probe in probes if probe.what == "matmul")
    for (tokens, channels), share in zip(sizes, shares, strict=True):
        forward = 2 * 4 * tokens**2 * channels / (peak * share)
        probes += [
            ProbedTime("attention", (tokens, channels, 0), forward, forward, forward),
            ProbedTime("attention", (tokens, channels, 1), 2 * forward, forward, forward),
        ]
    fitted = constant_sets.choose(probed_machine.machine("here", SEEN, 2, "float32", probes), "fsdp").values()
    for (tokens, channels), share in zip(sizes, shares, strict=True):
        attained = layer.attention_share(fitted, cases.column(tokens), cases.column(channels), layer.CAUSAL_SHARE)
        assert attained[0] == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("name", machine.known())
def test_every_bundled_machine_round_trips(name, tmp_path):
    bundled = machine.load(name)
    path = tmp_path / "again.toml"
    path.write_text(machine_file.write(bundled, "Again."))
    assert machine.load(str(path)) == bundled


def test_one_device_has_no_collectives():
    probed = probed_machine.machine("here", SEEN, 1, "float32", as_probed(ranks=1))
    assert probed.per_node == 1
    assert "intra_node" not in probed.calibration


NAMES = ("matmul", "attention", "passes", "intra_node", "step_s")


@given(st.lists(st.floats(-0.4, 0.4), min_size=len(NAMES), max_size=len(NAMES)))
def test_fit_recovers_the_true_constants(logs):
    """Each constant is measured separately, without noise."""
    truth = {name: getattr(Constants(), name) * np.exp(log) for name, log in zip(NAMES, logs)}
    truth = {name: min(value, 0.999) if name in SHARES else value for name, value in truth.items()}

    def residuals(tuned):
        return np.log([getattr(tuned, name) / truth[name] for name in NAMES]) / 1e-3

    fitted = solve(Constants(), NAMES, residuals, prior=1.0)
    for name in NAMES:
        assert getattr(fitted, name) == pytest.approx(truth[name], rel=1e-3)
    assert all(getattr(fitted, name) <= 1 for name in SHARES)


# Runs

MODEL = Model(name="small", layers=4, hidden_size=256, ffn_hidden_size=768, heads=4, kv_heads=2, head_dim=64)
LAYOUTS = (
    Layout(dp_replicate=2), Layout(dp_shard=2), Layout(tp=2, sequence_parallel=True, loss_parallel=True),
    Layout(cp=2), Layout(dp_shard=2, zero=1),
)  # fmt: skip


def a_job(layout, seq_len=256):
    return Job(
        model=MODEL, layout=layout, recipe=Recipe(seq_len=seq_len, tokens_per_step=16 * seq_len, micro_batch_size=4)
    )


def as_run(here, truth, job, name):
    """A run of a machine whose constants are `truth`."""
    predicted = step.step(cases.of_jobs([job]), hardware.of_machine(here, "float32"), truth)
    ledger = predicted_ledger.ledger(predicted, 0, job.layout.ranks, "made")
    return MeasuredRun(name, job, ledger, ledger.wall_ns / 1e9)


HERE = probed_machine.machine("here", SEEN, 2, "float32", as_probed())
BASE = constant_sets.choose(HERE, "fsdp").values()


def test_fit_changes_the_constant_of_the_disagreeing_account():
    truth = BASE._replace(attention=BASE.attention / 2)
    runs = [as_run(HERE, truth, a_job(layout), str(layout)) for layout in LAYOUTS[:3]]
    after = fit_constants.calibrate_machine(HERE, BASE, runs)
    assert after.calibration["attention"].value == pytest.approx(BASE.attention / 2, rel=0.15)
    assert after.calibration["attention_backward"].value == pytest.approx(BASE.attention_backward, rel=0.1)
    assert after.calibration["matmul"].value == pytest.approx(BASE.matmul, rel=0.05)
    assert "3 runs" in after.calibration["attention"].source
    assert after.prediction_interval is None


@settings(max_examples=4, deadline=None)  # each of five fits, which predict hundreds of steps
@given(st.lists(st.floats(0.6, 1.6), min_size=4, max_size=4))
def test_fitted_constants_predict_another_run(scales):
    names = ("attention", "passes", "intra_node_s", "microbatch_s")
    truth = BASE._replace(**{name: getattr(BASE, name) * scale for name, scale in zip(names, scales)})
    runs = [as_run(HERE, truth, a_job(layout), str(layout)) for layout in LAYOUTS[:4]]
    after = fit_constants.calibrate_machine(HERE, BASE, runs)
    other = as_run(HERE, truth, a_job(LAYOUTS[4]), "other")
    now = constant_sets.choose(after, "fsdp").values()
    assert fit_constants.seconds(after, now, other.job) == pytest.approx(other.seconds, rel=0.08)
    low, high = after.prediction_interval
    assert low <= 1 <= high


def test_calls_of_a_cpu_are_a_part_of_its_elementwise_time():
    """A trace books the time of a call to the operation that is called."""
    job = a_job(LAYOUTS[0])
    short, long = (
        fit_constants.predicted_parts(
            fit_constants.predicted(HERE, BASE._replace(host_forward_s=seconds), [job]), split_backward=True
        )[0]
        for seconds in (1e-3, 2e-3)
    )
    # 4 layers, and 2 micro-batches on each of 2 ranks.
    assert long["elementwise"] - short["elementwise"] == pytest.approx(8e-3)
    assert {part for part in short if short[part] != long[part]} == {"elementwise"}


def test_repeated_runs_of_three_jobs_give_no_interval():
    """Five runs, but an error for each job is needed."""
    runs = [as_run(HERE, BASE, a_job(LAYOUTS[index % 3]), str(index)) for index in range(5)]
    assert fit_constants.calibrate_machine(HERE, BASE, runs).prediction_interval is None


def test_noisy_run_has_less_weight():
    """If two runs disagree, the fit follows the run whose steps are known precisely."""
    job = a_job(LAYOUTS[0])
    fast, slow = (as_run(HERE, BASE._replace(passes=BASE.passes * scale), job, "a run") for scale in (0.5, 2.0))

    def error(noise):
        runs = [fast, slow._replace(noise=noise)]
        fitted = fit_constants.calibrate_machine(HERE, BASE, runs)
        constants = constant_sets.choose(fitted, "fsdp").values()
        return abs(np.log(fit_constants.seconds(fitted, constants, job) / fast.seconds))

    assert error(0.5) < error(0.0) / 4


def test_planner_uses_the_machines_own_spread():
    own = replace(HERE, prediction_interval=(0.9, 1.2))
    case = cases.of_jobs([a_job(LAYOUTS[0])])
    assert interval_of(machine_model.build(own, "fsdp", "float32"), case) == (0.9, 1.2, "")
    assert not interval_of(machine_model.build(HERE, "fsdp", "float32"), case).calibrated


def test_unknown_constant_is_refused():
    odd = replace(HERE, calibration={"matmull": Claim(value=1.0, unit="share", source="a test")})
    with refused(BadInput, "matmull"):
        constant_sets.choose(odd, "fsdp")


def test_tables_show_probes_and_fitted_constants():
    calls = tuple(timed_call(probe) for probe in as_probed())
    probed = ProbedMachine(machine=HERE, ranks=2, dtype="float32", calls=calls)
    assert len(probe_tables.calls(probed).rows) == len(calls)
    table = probe_tables.rates(probed)
    assert [row[0] for row in table.rows].count("matmul") == 1
    assert {"attention", "copy", "launch", *COLLECTIVES} <= {row[0] for row in table.rows}
    runs = [as_run(HERE, BASE, a_job(layout), str(layout)) for layout in LAYOUTS[:2]]
    fitted = fit(HERE, runs)
    table = probe_tables.runs(fitted)
    errors = [abs(row[6]) for row in table.rows]
    assert errors == sorted(errors, reverse=True)
    assert len(table.rows) == len(runs)
    assert len(probe_tables.constants(HERE).rows) == len(HERE.calibration)


@pytest.mark.parametrize(
    ("arguments", "kind", "values"),
    [
        (["fit", "a-run", "--machine", "h10"], UnknownName, ["'h10'"]),
        (["--ranks", "4096"], BadInput, ["--ranks 4096"]),
        (["--dtype", "float9"], UnknownName, ["'float9'"]),
    ],
)
def test_impossible_probes_are_refused(arguments, kind, values):
    done = CliRunner().invoke(command, arguments)
    assert type(done.exception) is kind
    assert missing_values(str(done.exception), *values) == []


SMALL_PROBES = {
    "_SIZES": (16, 32),
    "_ATTENTION": ((32, 16),),
    "_BYTES": (1 << 8, 1 << 10, 1 << 12),
    "_LONG_ENOUGH_S": 1e-5,
}
"""Constants of `probe_rank` with which a probe takes milliseconds."""


@pytest.mark.torch
def test_a_rank_measures_all_kinds_of_probes(monkeypatch):
    pytest.importorskip("torch")
    from trainyard.run.probe import probe_rank

    for name, value in SMALL_PROBES.items():
        monkeypatch.setattr(probe_rank, name, value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    timed = probe_rank.measure("cpu", "float32", 1, "")
    assert {probe.what for probe in timed} == {"launch", "copy", "matmul", "attention"}
    assert all(0 < probe.low <= probe.high and probe.seconds > 0 for probe in timed)
    assert sum(probe.what == "matmul" for probe in timed) == 8


def measure_small_probes(vendor, dtype, threads, meet):
    """Measures a rank in a process of its own, as `devices.probe` does, with small sizes."""
    from trainyard.run.probe import probe_rank

    vars(probe_rank).update(SMALL_PROBES, _SIZES=(16, 32, 128), _BYTES=(1 << 12, 1 << 14, 1 << 16))
    return probe_rank.measure(vendor, dtype, threads, meet)


@pytest.mark.torch
@pytest.mark.slow
def test_two_ranks_probe_their_collectives(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from trainyard.run.probe import devices as measured

    monkeypatch.setattr(measured, "_measure", measure_small_probes)
    seen, ranks, _ = measured.devices(None, "float32")
    timed, load = measured.probe(seen.vendor, min(2, ranks), "float32")
    assert load is None or 0 < load.run_cores <= load.cores
    probed = probed_machine.machine("here", seen, min(2, ranks), "float32", timed)
    if ranks > 1:
        assert set(probed.intra_node.achieved) == set(COLLECTIVES)
    path = tmp_path / "here.toml"
    path.write_text(machine_file.write(probed, "Measured."))
    assert machine.load(str(path)) == probed
    assert dataclasses.is_dataclass(hardware.of_machine(probed, "float32"))
