"""Ranks on unlike devices: refused without a stated job, reported by model with one."""

import pytest

from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.errors import BadInput
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.trace.align.device_models import device_model
from trainyard.trace.measure import measure_files
from trainyard.trace.whatif.what_if import what_if

A100, V100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"


def rank_file(folder, name, device, length=10_000, begin=0, **facts):
    stop = begin + length
    document = trace([("ampere_sgemm", 7, begin, stop, begin), ("x", 7, stop + 5_000, stop + 9_000, stop)], **facts)
    document["deviceProperties"] = [{"id": 0, "name": device}]
    return write(folder, document, name)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (A100, "A100 SXM4"),
        ("A100-SXM4-40GB", "A100 SXM4"),
        (V100, "V100 SXM2"),
        ("NVIDIA H100 80GB HBM3", "H100 HBM3"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("", ""),
    ],
)
def test_model_is_the_name_without_vendor_and_memory(name, model):
    assert device_model(name) == model


def test_files_of_unlike_devices_without_a_job_are_refused(tmp_path):
    files = [rank_file(tmp_path, "a.json", A100), rank_file(tmp_path, "b.json", V100)]
    with refused(BadInput) as error:
        measure_files(files)
    assert "a.json" in error.value.message
    assert "V100" in error.value.message


@pytest.mark.parametrize("facts", [{"rank": 0, "world": 2}, {}])
def test_alike_devices_have_one_mean(tmp_path, facts):
    names = [A100, A100.replace("80", "40")]
    files = [
        rank_file(tmp_path, f"{rank}.json", name, **(facts | {"rank": rank} if facts else {}))
        for rank, name in enumerate(names)
    ]
    measured = measure_files(files)
    assert measured.by_model == ()
    assert measured.mean.scope.ranks == (0, 1)


@pytest.mark.parametrize("change", ["compute=2x", "no-launch-gaps"])
def test_predictions_of_unlike_devices_are_of_the_ranks_of_the_mean(tmp_path, change):
    files = [
        rank_file(tmp_path, f"{rank}.json", device, length, rank=rank, world=3)
        for rank, (device, length) in enumerate([(V100, 40_000), (A100, 10_000), (A100, 20_000)])
    ]
    measured = measure_files(files)
    prediction = what_if(measured, [change])
    assert prediction.mean.scope.ranks == (1, 2)
    assert prediction.recovery.ns == measured.mean.wall_ns - prediction.mean.wall_ns > 0


def test_job_on_unlike_devices_is_reported_by_model(tmp_path):
    files = [
        rank_file(tmp_path, f"{rank}.json", device, length, rank=rank, world=3)
        for rank, (device, length) in enumerate([(V100, 40_000), (A100, 10_000), (A100, 20_000)])
    ]
    measured = measure_files(files)
    assert [(model.model, model.ranks) for model in measured.by_model] == [("A100 SXM4", (1, 2)), ("V100 SXM2", (0,))]
    alone = measure_files(files[1:])
    assert measured.mean.entries == alone.mean.entries
    assert measured.mean.scope.ranks == (1, 2)
    assert {ledger.scope.ranks for ledger in measured.by_rank} == {(0,), (1,), (2,)}

    analysis = analyse_measured(measured)
    assert analysis.subject.startswith("2 × A100 SXM4, 1 × V100 SXM2 · 3 of 3 ranks")
    assert any("unlike devices" in warning for warning in analysis.warnings)
    (table,) = [table for table in analysis.tables if table.title == "Device models"]
    assert [row[:3] for row in table.rows] == [("A100 SXM4", 2, 0.024), ("V100 SXM2", 1, 0.049)]
    assert sum(row.ns for row in analysis.kernels) == sum(row.ns for row in analyse_measured(alone).kernels)


def test_recordings_of_unlike_devices_that_do_not_overlap_are_refused(tmp_path):
    files = [
        rank_file(tmp_path, f"{rank}.json", device, begin=rank * 10**9, rank=rank, world=2)
        for rank, device in enumerate([V100, A100])
    ]
    with refused(BadInput, "0.json", "1.json", "V100 SXM2", "A100 SXM4"):
        measure_files(files)
    alike = [rank_file(tmp_path, f"{rank}.json", A100, begin=rank * 10**9, rank=rank, world=2) for rank in range(2)]
    assert measure_files(alike).mean.scope.ranks == (0, 1)


@pytest.mark.parametrize("first", ["diff_control.json.gz", "a100_ddp_resnet.json.gz"])
def test_public_traces_of_two_jobs_are_refused(public_trace, first):
    """The second pair states one world and two ranks, but was recorded in different years."""
    with pytest.raises(BadInput):
        measure_files([public_trace(first), public_trace("diff_test.json.gz")])
