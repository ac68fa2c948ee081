"""Findings of two recordings of `stacks/my_train.py`, with sampled stacks and `with_stack=True`, name its lines."""

from pathlib import Path

import pytest

import trainyard

FOLDER = Path(__file__).parent / "stacks"
TEXT = (FOLDER / "my_train.py").read_text("utf-8").splitlines()


def code_of(name):
    """(file, line, function) -> (share, samples) of the finding about the planted sleeps."""
    (finding,) = [
        finding for finding in trainyard.analyse(str(FOLDER / name)).findings if finding.rule == "launch_bound"
    ]
    return {
        (share.location.file, share.location.line, share.location.function): (share.share, share.samples)
        for share in finding.code
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "sampled.json.gz",
            {("my_train.py", 18, "augment"): (0.7206, 14), ("my_train.py", 22, "log"): (0.2794, 5)},
        ),
        (
            "recorded.json.gz",
            {("my_train.py", 17, "augment"): (0.7274, 0), ("my_train.py", 21, "log"): (0.2448, 0)},
        ),
    ],
)
def test_recordings_name_the_planted_lines(name, expected):
    """Samples give the line that ran; recorded frames give the first line of its function."""
    assert code_of(name) == expected
    for _, line, function in expected:
        assert "time.sleep" in TEXT[line - 1] or f"def {function}" in TEXT[line - 1]


def test_both_recordings_agree_with_the_planted_times():
    """30 ms and 10 ms of each step."""
    for name in ("sampled.json.gz", "recorded.json.gz"):
        shares = [share for share, _ in code_of(name).values()]
        assert shares[0] == pytest.approx(0.75, abs=0.05)
