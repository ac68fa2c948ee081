"""Bad input as users meet it: files of several formats, cut databases, unknown fields, a rank twice, no device work,
dropped events. Each ends in an error that names the file and a next step, or in a note with a number."""

import gzip
import json
import zipfile

import pytest

from tests.refused import code_of, missing_values, refused
from tests.trace.readers import reader_fixtures as make
from tests.trace_maker import trace
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput
from trainyard.trace.measure import measure, measure_files
from trainyard.trace.rank_files import read_file

GEMM = [("gemm", 7, 0, 100, 0), ("gemm", 7, 120, 200, 90)]


def kineto(path, rank=None, world=1):
    path.write_bytes(gzip.compress(json.dumps(trace(device=GEMM, rank=rank, world=world)).encode()))
    return path


def folder_of_two_formats(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    for rank in range(3):
        kineto(folder / f"rank{rank}.json.gz", rank, 3)
    make.write_rocprof(folder / "7_results.json", make.rocprof_step())
    return folder


def test_files_of_several_formats_are_refused_with_their_names(tmp_path, capsys):
    folder = folder_of_two_formats(tmp_path)
    for paths in ([folder], sorted(folder.iterdir())):
        with refused(BadInput, 2, "kineto", 3, "rocprof", 1, "7_results.json", "rank0.json.gz"):
            measure_files(paths)
    assert answer(["trace", str(folder)]) == 2
    assert code_of(capsys.readouterr().err) == "bad-input"


def test_each_format_of_a_folder_is_read_alone(tmp_path):
    folder = folder_of_two_formats(tmp_path)
    assert measure_files(sorted(folder.glob("rank*"))).mean.wall_ns == 200
    assert measure_files([folder / "7_results.json"]).mean.wall_ns == 360


@pytest.mark.parametrize("data", [b"", b"{", b'{"rocpr', b"[1, 2]", gzip.compress(b"", mtime=0)])
def test_damaged_files_do_not_make_a_second_format(data, tmp_path):
    for rank in range(3):
        make.write_rocprof(tmp_path / f"{rank}_results.json", make.rocprof_step())
    (tmp_path / "1_results.json").write_bytes(data)
    measured = measure_files([tmp_path])
    assert [file.path.name for file in measured.unread] == ["1_results.json"]
    assert len(measured.by_rank) == 2


def test_other_files_do_not_make_a_second_format(tmp_path):
    folder = folder_of_two_formats(tmp_path)
    (folder / "7_results.json").unlink()
    (folder / "global_metric_store.json").write_text('{"Average": {}, "Count": {}, "Sum": {}}')
    (folder / "run.json").write_text('{"schema": 1}')
    measured = measure_files([folder])
    assert len(measured.by_rank) == 3
    assert measured.unread == ()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_a_cut_database_is_damaged(share, tmp_path, capsys):
    """SQLite itself reads most of them without an error."""
    path = make.write_nsys(tmp_path / "n.sqlite", make.nsys_rows())
    data = path.read_bytes()
    cut = data[: int(len(data) * share)]
    path.write_bytes(cut)
    packed = tmp_path / "n.sqlite.gz"
    packed.write_bytes(gzip.compress(cut))
    for command in (["trace", str(path)], ["trace", str(path), "--json"], ["trace", str(packed)]):
        assert answer(command) == 2
        printed = capsys.readouterr().err
        assert code_of(printed) == "damaged-file"
        assert missing_values(printed, command[1], f"{len(cut):,}", f"{len(data):,}") == []


def test_a_database_of_few_bytes_is_refused(tmp_path, capsys):
    path = tmp_path / "n.sqlite"
    path.write_bytes(make.write_nsys(tmp_path / "whole", make.nsys_rows()).read_bytes()[:60])
    assert answer(["trace", str(path)]) == 2
    assert code_of(capsys.readouterr().err) == "bad-file"


def test_unknown_fields_of_protocol_buffers_are_skipped(tmp_path):
    """A later version of a schema adds fields, before and inside the messages."""
    unknown = make.message((77, 5), (78, b"later"), (79, 1.5))
    step = make.message((100, unknown)) + make.gpu_step() + unknown
    for name, data, wall in (("x.xplane.pb", step, 230), ("p.pftrace", unknown + make.pftrace_step() + unknown, 360)):
        path = tmp_path / name
        path.write_bytes(data)
        assert measure(read_file(path)).mean.wall_ns == wall


@pytest.mark.parametrize(
    "data",
    [
        make.message((1, make.message((1, 7), (2, b"\x00\x01"), (3, 5))), (1, b"text")),  # neither a plane nor a packet
        make.message((3, b"one"), (9, 4)),
        make.message((15, make.message((2, "/device:GPU:0")))),  # a plane in another field
    ],
)
def test_other_protocol_buffers_are_refused(data, tmp_path):
    path = tmp_path / "x.pb"
    path.write_bytes(data)
    with refused(BadFile, path, *f"{data[:2].hex(' ')}".split()):
        measure_files([path])


def test_two_files_of_one_rank_are_refused_with_both_names(tmp_path):
    files = [kineto(tmp_path / f"{name}.json.gz", 1, 4) for name in ("first", "second")]
    with refused(BadInput, "first.json.gz", "second.json.gz", 1):
        measure_files(files)


@pytest.mark.parametrize("names", [("r.json", "r.json.gz"), ("r.json", "r.zip"), ("r.json.gz", "r.json.zip")])
def test_a_file_and_its_packed_copy_are_not_two_ranks(names, tmp_path):
    data = json.dumps({"rocprofiler-sdk-tool": [make.rocprof_step()]}).encode()
    for name in names:
        if name.endswith(".zip"):
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("r.json", data)
        else:
            (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with refused(BadInput, *names):
        measure_files([tmp_path])


def test_different_recordings_with_one_stem_are_two_ranks(tmp_path):
    plain = kineto(tmp_path / "r.json.gz")
    with zipfile.ZipFile(tmp_path / "r.zip", "w") as archive:
        archive.writestr("r.json", json.dumps(trace(device=[("gemm", 7, 0, 300, 0)])))
    assert len(measure_files([plain.parent]).by_rank) == 2


NO_WORK = {
    "kineto": trace(host=[("cudaLaunchKernel", 1, 0, 10, "cuda_runtime", {"correlation": 1})]),
    "rocprof": {"rocprofiler-sdk-tool": [make.rocprof_process(hip_api=[make.api(1, 0, 0, 5, 1)])]},
    "neuron": {"instruction": [{"timestamp": 0, "duration": 9, "label": "Sync", "opcode": "EVENT_SEMAPHORE"}]},
}


@pytest.mark.parametrize("kind", NO_WORK)
def test_a_profile_without_device_work_is_refused(kind, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(NO_WORK[kind]))
    assert answer(["trace", str(path)]) == 2
    printed = capsys.readouterr().err
    assert code_of(printed) == "bad-file"
    assert "r.json" in printed
    assert len(printed.splitlines()) == 2  # the reason and a next step


def test_dropped_events_are_counted_in_text_and_json(tmp_path, capsys):
    document = make.neuron_step()
    document["summary"][0]["scalar_engine_instruction_count"] = 4 + 4321
    document["warnings"] = [{"message": "17 notifications were dropped"}]
    path = tmp_path / "n.json"
    path.write_text(json.dumps(document))
    for command in (["trace", str(path)], ["trace", str(path), "--json"]):
        assert answer(command) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert missing_values(printed, "4,321", "17 notifications") == []
