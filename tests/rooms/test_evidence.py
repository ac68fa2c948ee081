"""The records that `make device-evidence` keeps, without a device."""

import gzip
import json

import pytest

from benchmarks import evidence, synthetic
from trainyard import job
from trainyard.trace.measure import measure, read
from trainyard.train import layout


@pytest.mark.parametrize("size", evidence.SIZES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_size_is_a_job_that_can_be_trained(size, ranks):
    wanted = job.parse(evidence.job_text(size, ranks), "evidence")
    layout.check(wanted)
    assert wanted.layout.ranks == ranks


def test_sizes_fall():
    parameters = [size.parameters for size in evidence.SIZES]
    assert parameters == sorted(parameters, reverse=True)


def test_a_trimmed_trace_is_its_last_step_and_can_be_read(tmp_path):
    synthetic.write(tmp_path / "whole.json")
    trimmed = evidence.trim(json.loads((tmp_path / "whole.json").read_text("utf-8")))
    assert len(trimmed) <= evidence.TRACE_LIMIT
    (tmp_path / "trimmed.json.gz").write_bytes(trimmed)
    (rank,) = measure(read([tmp_path / "trimmed.json.gz"])).ranks
    assert [mark.label for mark in rank.events.marks] == [str(synthetic.STEPS - 1)]
    assert len(rank.events.work) >= synthetic.KERNELS


def test_a_trace_too_large_loses_what_explains_least_first(tmp_path):
    synthetic.write(tmp_path / "whole.json")
    whole = json.loads((tmp_path / "whole.json").read_text("utf-8"))
    small = json.loads(gzip.decompress(evidence.trim(whole, limit=len(evidence.trim(whole)) - 1)))
    categories = {event.get("cat") for event in small["traceEvents"]}
    assert "kernel" in categories
    assert "cpu_op" not in categories


def test_without_an_accelerator_it_says_so_and_succeeds(monkeypatch, capsys):
    monkeypatch.setattr(evidence, "accelerators", lambda: ([], 0))
    assert evidence.main() == 0
    assert "no accelerator here" in capsys.readouterr().out
