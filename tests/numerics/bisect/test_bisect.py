"""The search for causes, commands between two others, and the bisection of a real script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, NotEnoughEvidence
from trainyard.numerics.bisect.configuration import Changes
from trainyard.numerics.bisect.delta_debugging import Outcome, minimise
from trainyard.numerics.bisect.trials import Trials

OUTCOMES = st.sampled_from(["same", "different", "unresolved"])


@given(st.integers(1, 9).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1))))
def test_a_monotone_cause_is_found_exactly(case: tuple[int, set[int]]) -> None:
    size, cause = case
    calls = 0

    def test(chosen: Sequence[int]) -> Outcome:
        nonlocal calls
        calls += 1
        return "different" if cause <= set(chosen) else "same"

    assert set(minimise(range(size), test)) == cause
    assert calls <= size * size + 3 * size
    if len(cause) == 1:
        assert calls <= 2 * size.bit_length() + 1


@given(st.integers(1, 6), st.data())
def test_no_single_change_of_the_result_can_be_left_out(size: int, data: st.DataObject) -> None:
    """For any outcomes, monotone or not."""
    subsets = [frozenset(each) for count in range(size) for each in combinations(range(size), count)]
    outcomes: dict[frozenset[int], Outcome] = {subset: data.draw(OUTCOMES) for subset in subsets}
    outcomes[frozenset(range(size))] = "different"
    outcomes[frozenset()] = "same"
    left = minimise(range(size), lambda chosen: outcomes[frozenset(chosen)])
    assert outcomes[frozenset(left)] == "different"
    if len(left) > 1:
        assert all(outcomes[frozenset(left) - {at}] != "different" for at in left)


WORDS = st.lists(st.sampled_from(["train.py", "run", "--x", "--x=1", "--y", "-z", "1", "2", "--flag"]), max_size=8)


@given(WORDS, WORDS)
def test_commands_between_begin_and_end_at_the_two(a: list[str], b: list[str]) -> None:
    a, b = ["python", *a], ["python", *b]
    if a == b:
        with pytest.raises(BadInput):
            Changes(a, b, {})
        return
    changes = Changes(a, b, {})
    assert list(changes.configuration(()).command) == a
    assert sorted(changes.configuration(changes.changes).command) == sorted(b)
    for change in changes.changes:
        words = changes.configuration((change,)).command
        assert len(words) == len(a) - len(change.a or ()) + len(change.b or ())


def test_options_are_paired_by_name_and_variables_are_set() -> None:
    a = ["/a/python", "train.py", "--lr", "1e-3", "--compile"]
    b = ["/b/python", "train.py", "--lr", "2e-3", "--workers=3"]
    changes = Changes(a, b, {"OMP_NUM_THREADS": ("1", None), "SAME": ("1", "1")})
    described = [(change.kind, change.name, change.a, change.b) for change in changes.changes]
    assert described == [
        ("interpreter", "/a/python", ("/a/python",), ("/b/python",)),
        ("option", "--lr", ("--lr", "1e-3"), ("--lr", "2e-3")),
        ("option", "--compile", ("--compile",), None),
        ("option", "--workers", None, ("--workers=3",)),
        ("variable", "OMP_NUM_THREADS", ("1",), None),
    ]
    middle = changes.configuration(changes.changes[1:2])
    assert middle.command == ("/a/python", "train.py", "--lr", "2e-3", "--compile")
    assert middle.variables == {"OMP_NUM_THREADS": "1"}
    assert changes.configuration(changes.changes).variables == {"OMP_NUM_THREADS": None}


def test_a_record_without_a_reference_is_refused_before_a_training(tmp_path: Path) -> None:
    (tmp_path / "a" / "plain").mkdir(parents=True)
    recorded: list[object] = []
    with pytest.raises(BadInput):
        Trials(tmp_path / "a", tmp_path / "trials", (), lambda *arguments: recorded.append(arguments), print)
    assert not recorded
    assert not (tmp_path / "trials").exists()
    (tmp_path / "a" / "float64").mkdir()
    assert Trials(tmp_path / "a", tmp_path / "trials", (), lambda *_: None, print).finished == []


SCRIPT = Path(__file__).parents[1] / "compare" / "small_decoder.py"


@pytest.mark.torch
@pytest.mark.slow
def test_the_option_that_makes_a_script_differ_is_found_and_trials_are_kept(tmp_path: Path) -> None:
    from trainyard import api

    pytest.importorskip("torch")
    good = [sys.executable, str(SCRIPT), "--dtype", "float32"]
    api.record_numerics(good, tmp_path / "good", steps="0", replicas=3)
    wrong = [sys.executable, str(SCRIPT), "--dtype", "float64", "--fault", "epsilon"]
    with pytest.raises(BadInput):
        api.bisect_numerics(tmp_path / "good", wrong, tmp_path / "trials")
    messages: list[str] = []
    result = api.bisect_numerics(tmp_path / "good", wrong, tmp_path / "trials", rerun=True, say=messages.append)
    assert [(cause.name, cause.b) for cause in result.causes] == [("--fault", ("--fault", "epsilon"))]
    assert result.exit_code == 0
    assert result.first is not None
    assert result.first.tensor.module.endswith("layers.1.mlp_norm")
    assert len(result.trials) <= 4
    trials = (tmp_path / "trials" / "trials.jsonl").read_bytes()
    assert api.bisect_numerics(tmp_path / "good", wrong, tmp_path / "trials", rerun=True) == result
    assert (tmp_path / "trials" / "trials.jsonl").read_bytes() == trials
    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == ["trials.jsonl"]
    same = [sys.executable, str(SCRIPT), "--dtype", "float64"]
    with pytest.raises(NotEnoughEvidence):
        api.bisect_numerics(tmp_path / "good", same, tmp_path / "other", rerun=True)
