"""The numerics suite without training: accepted locations, trials, tables."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.numerics import __main__ as suite
from validation.numerics.benign import SEEDS, SETUPS
from validation.numerics.fault import SCRIPTS, Accepted, Location
from validation.numerics.faults import FAULTS
from validation.numerics.loss_curves import CurveVerdict, read_losses
from validation.numerics.recorded_pair import CommandFailed, Comparison, DifferingParts
from validation.numerics.tables import benign_table, fault_table, parts_table
from validation.numerics.trials import BenignTrial, CurveTrial, FaultTrial, Trials

PATHS = st.lists(st.sampled_from(["layers", "0", "1", "10", "mlp", "mlp_norm"]), min_size=1, max_size=4)


def functions(script: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((SCRIPTS / f"{script}.py").read_text("utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_its_script_source_and_accepted_locations() -> None:
    assert {fault.number for fault in FAULTS} == set(range(1, 28))
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.accepted
        assert fault.source.startswith("https://")
        for accepted in fault.accepted:
            assert any(accepted), f"{fault.id} accepts everything"
            assert not accepted.function or accepted.function in functions(fault.script)
            assert accepted.phase in ("", "forward", "backward", "optimizer")


def test_no_fault_accepts_an_unknown_location() -> None:
    assert not [fault.id for fault in FAULTS if fault.names(Location())]


def test_benign_setups_are_distinct_and_two_hundred_pairs() -> None:
    assert len({(setup.model, setup.reference, setup.suspect) for setup in SETUPS}) == len(SETUPS)
    assert len({setup.id for setup in SETUPS}) == len(SETUPS)
    assert len(SETUPS) * SEEDS >= 200


@given(PATHS, PATHS)
def test_a_module_is_accepted_with_its_parents_and_children(path: list[str], part: list[str]) -> None:
    joined = ".".join(path)
    contained = any(path[start : start + len(part)] == part for start in range(len(path)))
    assert Accepted(module=".".join(part)).matches(Location(module=joined), "") == contained


def test_all_conditions_must_hold() -> None:
    accepted = Accepted(phase="backward", module="layers.1.up", operation=("aten.mm",), role=("output", "gradient"))
    location = Location(phase="backward", module="module.layers.1.up", operation="aten.mm.default", role="output")
    assert accepted.matches(location, "")
    for wrong in ({"phase": "forward"}, {"module": "layers.11.up"}, {"operation": "aten.mul"}, {"role": "weight"}):
        assert not accepted.matches(location._replace(**wrong), "")


def test_a_line_is_accepted_in_its_function_only() -> None:
    node = functions("mean_of_means")["micro_batch_loss"]
    accepted = Accepted(function="micro_batch_loss")
    lines = {
        line
        for line in range(1, (node.end_lineno or 0) + 20)
        if accepted.matches(Location(line=f"/any/mean_of_means.py:{line}"), "mean_of_means")
    }
    assert lines == set(range(node.lineno, (node.end_lineno or 0) + 1))
    assert not accepted.matches(Location(line=f"/any/decoder.py:{node.lineno}"), "mean_of_means")
    assert not accepted.matches(Location(line="mean_of_means.py:x"), "mean_of_means")


def test_losses_are_averaged_over_ranks() -> None:
    output = "rank 1 step 0 loss 4.0\nrank 0 step 1 loss nan\nother\nrank 0 step 0 loss 2.0\nrank 1 step 1 loss 1.0\n"
    losses = read_losses(output)
    assert losses[0] == 3.0
    assert losses[1] != losses[1]


def test_trials_survive_a_truncated_line_and_failures_are_repeated(tmp_path) -> None:
    path = tmp_path / "out" / "trials.jsonl"
    trials = Trials(path)
    trials.append(FaultTrial(id="a", error="no"))
    trials.append(BenignTrial(id="s", seed=1, verdict="different"))
    trials.append(CurveTrial(id="a", result=CurveVerdict("same", 0.0, None)))
    with path.open("ab") as lines:
        lines.write(b'{"type":"fault","id":"b"')
    read = Trials(path)
    assert not read.has_result("fault", "a")
    assert read.has_result("curve", "a")
    assert read.has_result("benign", "s", 1)
    assert not read.has_result("benign", "s", 0)
    assert not read.has_result("fault", "b")


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Stand-ins for record and compare: `commands.result` is returned by each comparison. Lists recorded commands."""

    class Commands(list[list[str]]):
        result = Comparison("same", Location(), (), 0.0, 0.5)

    recorded = Commands()

    def record(folder, command, *, plain) -> float:
        if "fails" in recorded:
            raise CommandFailed("no trace")
        recorded.append(list(command))
        return 2.0

    monkeypatch.setattr(suite, "record", record)
    monkeypatch.setattr(suite, "compare", lambda reference, suspect: recorded.result)
    monkeypatch.setattr(suite, "OUT", tmp_path)
    return recorded


def run(part, *arguments) -> None:
    """Runs a part of the suite, two trials at a time."""
    with ThreadPoolExecutor(2) as pool:
        done, _ = wait(part(pool, *arguments))
    assert all(future.exception() is None for future in done)


def test_an_alarm_names_the_fault_only_at_an_accepted_location(commands, tmp_path) -> None:
    fault = next(fault for fault in FAULTS if fault.id == "wrong_norm_epsilon")
    outcomes = {}
    for module in ("layers.1.mlp_norm", "layers.0.mlp_norm"):
        commands.result = Comparison("different", Location(step=0, phase="forward", module=module), (), 0.0, 0.5)
        trial = suite.try_fault(fault, tmp_path)
        outcomes[module] = (trial.verdict, trial.named)
    assert outcomes == {"layers.1.mlp_norm": ("different", True), "layers.0.mlp_norm": ("different", False)}
    commands.result = Comparison("cannot tell", Location(phase="forward", module="layers.1.mlp_norm"), (), 0.0, 0.5)
    assert not suite.try_fault(fault, tmp_path).named


def test_parts_name_a_fault_if_one_of_them_is_accepted(commands, monkeypatch, tmp_path) -> None:
    locations = [Location(step=0, phase="forward", module=f"layers.{layer}.mlp_norm") for layer in (0, 1)]
    for chosen, named in ((locations, True), (locations[:1], False), ([], False)):
        parts = DifferingParts(tuple("part" for _ in chosen), tuple(chosen), "", 1.0)
        monkeypatch.setattr(suite, "find_parts", lambda *_, parts=parts: parts)
        trials = Trials(tmp_path / f"{len(chosen)}.jsonl")
        faults = [fault for fault in FAULTS if fault.id == "wrong_norm_epsilon"]
        run(suite.run_parts, trials, faults, SETUPS[:2])
        trial = trials.parts("wrong_norm_epsilon")
        assert trial is not None
        assert (trial.named, len(trial.parts)) == (named, len(chosen))
        alarms = 2 if chosen else 0
        assert f"{int(named)} of 1 faults are named, 0 of them as the only part. {alarms} false" in parts_table(trials)
        recorded = len(commands)
        run(suite.run_parts, Trials(tmp_path / f"{len(chosen)}.jsonl"), faults, SETUPS[:2])
        assert len(commands) == recorded


def test_finished_trials_are_not_repeated_and_references_are_shared(commands, tmp_path) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    recommender = [setup for setup in SETUPS if setup.model == "recommender"]
    run(suite.run_benign, trials, recommender, 2)
    assert len(commands) == 2 * (1 + len(recommender))
    run(suite.run_benign, Trials(tmp_path / "trials.jsonl"), recommender, 2)
    assert len(commands) == 2 * (1 + len(recommender))


def test_failed_recordings_are_reported_and_tried_again(commands, tmp_path) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    commands.append("fails")
    run(suite.run_faults, trials, FAULTS[:1])
    run(suite.run_benign, trials, SETUPS[:1], 1)
    assert {trial.error for trial in trials.by_key.values()} == {"no trace"}
    commands.remove("fails")
    run(suite.run_faults, trials, FAULTS[:1])
    assert trials.has_result("fault", FAULTS[0].id)


def test_tables_count_alarms_and_names(tmp_path) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    trials.append(FaultTrial(id=FAULTS[0].id, verdict="different", named=True, reproduced="random inputs"))
    trials.append(FaultTrial(id=FAULTS[1].id, verdict="different", reproduced="captured inputs"))
    trials.append(FaultTrial(id=FAULTS[2].id, error="no"))
    for seed in range(4):
        verdict = "different" if seed == 3 else "same"
        trials.append(BenignTrial(id=SETUPS[0].id, seed=seed, verdict=verdict, location=Location(module="embedding")))
    table = fault_table(trials)
    assert f"2 of {len(FAULTS)} faults tried: 2 with an alarm, 1 named, 2 shown by a reproducer." in table
    assert "1 of 27 bugs are named, 1 of them with a reproducer." in table
    assert "1 false alarms in 4 pairs: 25.0 %" in benign_table(trials)
