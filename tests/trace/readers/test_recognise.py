"""The choice of a reader by content: any container, size and order of keys; refusals with the reason."""

import contextlib
import gzip
import json
import random
import sqlite3
import sys
import types
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import missing_values, refused
from tests.trace.readers import reader_fixtures as make
from tests.trace_maker import trace
from trainyard import plugins
from trainyard.cli.main import answer
from trainyard.entry_points import EntryPoint
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.events import KERNEL
from trainyard.plugins import ReadOptions
from trainyard.trace.measure import measure, measure_files
from trainyard.trace.rank_files import Unread, rank_files, read_file
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.gather import Gather
from trainyard.trace.readers.recognise import recognise

GEMM = [("gemm", 7, 0, 100, 0), ("gemm", 7, 120, 200, 90)]


def rocprof_file() -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": [make.rocprof_step()]}).encode()


def nsys_file(tmp_path: Path) -> bytes:
    path = tmp_path / "built.sqlite"
    path.unlink(missing_ok=True)
    return make.write_nsys(path, make.nsys_rows()).read_bytes()


# kind -> (reader, ending of a file name, contents)
KINDS = {
    "kineto": ("kineto", ".json", lambda _: json.dumps(trace(device=GEMM)).encode()),
    "rocprof": ("rocprof", ".json", lambda _: rocprof_file()),
    "neuron": ("neuron", ".json", lambda _: json.dumps(make.neuron_step()).encode()),
    "pftrace": ("pftrace", ".pftrace", lambda _: make.pftrace_step()),
    "tpu": ("xplane", ".xplane.pb", lambda _: make.tpu_step()),
    "gpu": ("xplane", ".xplane.pb", lambda _: make.gpu_step()),
    "nsys": ("nsys", ".sqlite", nsys_file),
}


def write(path: Path, data: bytes, container: str) -> Path:
    """Writes the data plainly, as gzip, or into a zip archive, plainly or as gzip."""
    if container == "gzip":
        path = path.with_name(f"{path.name}.gz")
        path.write_bytes(gzip.compress(data))
    elif container.startswith("zip"):
        name = path.name + ".gz" * container.endswith("gzip")
        path = path.with_name(f"{path.name}.zip")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, gzip.compress(data) if container.endswith("gzip") else data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("container", ["plain", "gzip", "zip", "zip of gzip"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_takes_every_container(kind, container, tmp_path):
    reader, ending, contents = KINDS[kind]
    data = contents(tmp_path)
    plain = write(tmp_path / f"plain{ending}", data, "plain")
    path = write(tmp_path / f"packed{ending}", data, container)
    assert recognise(path).reader == reader
    accepting = {name for name, each in plugins.load_all("readers").items() if each.sniff(path)}
    assert accepting == {reader}
    entries = measure(read_file(plain)).mean.entries
    assert measure(read_file(path)).mean.entries == entries
    assert measure(plugins.load("readers", reader).read(path)).mean.entries == entries


@pytest.mark.parametrize("name", ["profile", "profile.json", "profile.sqlite", "profile.pb"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_name_does_not_decide(kind, name, tmp_path):
    reader, _, contents = KINDS[kind]
    path = tmp_path / name
    path.write_bytes(contents(tmp_path))
    assert recognise(path).reader == reader


NEURON_SECTIONS = {
    "terminology": [{f"metric_{number}": "words " * 20 for number in range(2000)}],
    "warnings": [{"message": 'the key "traceEvents": [ and {"rocprofiler-sdk-tool": are only text'}],
    "dma": [],
    "metadata": [{"traceEvents": [], "rocprofiler-sdk-tool": [{"x": "}]\\"}]}],
    **make.neuron_step(),
}


@pytest.mark.parametrize("seed", range(12))
def test_neuron_keys_in_any_order_and_at_any_distance(seed, tmp_path):
    keys = list(NEURON_SECTIONS)
    random.Random(seed).shuffle(keys)  # noqa: S311
    text = json.dumps({key: NEURON_SECTIONS[key] for key in keys}, indent=seed % 2 or None).encode()
    path = write(tmp_path / "n.json", text, "gzip" if seed % 3 else "plain")
    assert recognise(path).reader == "neuron"
    assert measure(read_file(path)).mean.wall_ns == 140


def test_a_rocprof_file_larger_than_any_entry_of_kineto(tmp_path):
    process = make.rocprof_step()
    process["padding"] = ["x" * 1000] * 17_500  # more than 16 MiB before the records
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [dict(reversed(process.items()))]}))
    for packed in (path, write(path, path.read_bytes(), "gzip")):
        assert measure(read_file(packed)).mean.wall_ns == 360


@pytest.mark.parametrize("container", ["plain", "gzip"])
def test_a_trace_with_a_large_header_before_its_events(container, tmp_path):
    document = {"other": [{"text": "x" * 1000}] * 17_500, **trace(device=GEMM)}  # more than 16 MiB
    path = write(tmp_path / "t.json", json.dumps(document).encode(), container)
    assert measure(read_file(path)).mean.wall_ns == 200


@pytest.mark.parametrize("kind", ["rocprof", "neuron"])
def test_a_cut_file_never_goes_to_another_format(kind, tmp_path):
    """A file without a key of its own format goes to Kineto's reader, which refuses it as cut short."""
    reader, ending, contents = KINDS[kind]
    data = contents(tmp_path)
    for number, length in enumerate(range(1, len(data), max(1, len(data) // 60))):
        path = tmp_path / f"{number}{ending}"
        path.write_bytes(data[:length])
        chosen = recognise(path).reader
        assert chosen in (reader, "kineto")
        with pytest.raises(BadFile) as caught:
            read_file(path)
        assert missing_values(caught.value.message, path) == []
    assert chosen == reader


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        ('{"neff_header": [], "semaphore_update": []}', "neuron"),  # complete, without its instructions
        ('{"neff_header": [], "semaphore_upd', "neuron"),
        ('{"schemaVersion": 1, "deviceProperties": [], "host_name": "a"}', "kineto"),
        ('{"traceEvents": {"a": 1}}', "kineto"),
        ('{"rocprofiler-sdk-tool": 5}', "rocprof"),
        ('{"host_name": "a", "steps": []}', ""),  # a record of another tool
        ('{"instruction": "Translate.", "output": "text"}', ""),
        ('{"summary": [1], "dma": 5}', ""),
        ("{}", ""),
        ("", "kineto"),
        ("{", "kineto"),
        ("[1, 2", "kineto"),
        ('\ufeff {"traceEvents": [', "kineto"),
    ],
)
def test_keys_and_their_types(text, reader, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text, "utf-8")
    assert recognise(path).reader == reader


def test_a_file_that_changed_is_recognised_again(tmp_path):
    path = tmp_path / "profile"
    path.write_bytes(rocprof_file())
    assert recognise(path).reader == "rocprof"
    path.write_bytes(json.dumps(make.neuron_step()).encode())
    assert recognise(path).reader == "neuron"


# --- other files


def rocpd(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE `rocpd_kernel_dispatch_0000` (id INTEGER)")
    connection.close()
    return path


def refusals(tmp_path: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Kind -> (a file that is not a profile, words that the error must name)."""
    store = {key: {"compiletime": {"Pass": 1}} for key in ("Sum", "Count", "Average")}
    return {
        "metric store": (tmp_path / "store.json", json.dumps(store).encode(), ("neuron-profile",)),
        "execution trace": (
            tmp_path / "et.json",
            json.dumps({"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}).encode(),
            ("export_chrome_trace",),
        ),
        "report of nsys": (
            tmp_path / "job.3.nsys-rep",
            bytes(range(200, 256)),
            ("nsys export --type sqlite --output job.3.sqlite job.3.nsys-rep",),
        ),
        "empty report of nsys": (
            tmp_path / "e.nsys-rep",
            b"",
            ("nsys export --type sqlite --output e.sqlite e.nsys-rep",),
        ),
        "raw capture": (tmp_path / "p.ntff", b"\x7fNTFF" + bytes(40), ("neuron-profile", "p.ntff")),
        "other JSON": (tmp_path / "run.json", b'{"schema": "x", "steps": [1, 2]}', ("schema", "steps")),
        "other bytes": (tmp_path / "x.bin", b"\x93NUMPY\x01\x00", ("93", "4e")),
    }


@pytest.mark.parametrize(
    ("kind", "container"),
    [
        *((kind, "plain") for kind in refusals(Path())),
        *(
            (kind, container)
            for kind, (_, data, _) in refusals(Path()).items()
            if data
            for container in ("gzip", "zip")
        ),
    ],
)
def test_other_files_are_refused_with_the_reason(kind, container, tmp_path):
    path, data, words = refusals(tmp_path)[kind]
    path = write(path, data, container)
    assert not recognise(path).reader
    assert not [name for name, reader in plugins.load_all("readers").items() if reader.sniff(path)]
    with refused(BadFile, path, *words):
        measure_files([path])


def test_a_rocpd_database_is_refused_with_the_conversion(tmp_path):
    path = rocpd(tmp_path / "r_results.db")
    with refused(BadFile, path, "rocpd convert -i r_results.db --output-format pftrace"):
        measure_files([path])


def test_a_report_of_nsys_counts_unless_its_export_is_there(tmp_path):
    report = tmp_path / "job.nsys-rep"
    report.write_bytes(b"\x01\x02\x03")
    (alone,) = rank_files([tmp_path])
    assert isinstance(alone, Unread)
    assert alone.path == report
    export = make.write_nsys(tmp_path / "job.sqlite", make.nsys_rows())
    assert rank_files([tmp_path]) == [export]


# --- archives


def archive_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "."), data)
    return path


def test_each_profile_of_an_archive_is_read(tmp_path):
    other = make.neuron_step()
    other["instruction"] = other["instruction"][1:]
    path = archive_of(
        tmp_path / "two.zip",
        a__json=json.dumps(make.neuron_step()).encode(),
        b__json__gz=gzip.compress(json.dumps(other).encode()),
        notes__json=b'{"comment": "not a profile"}',
        README__txt=b"read me",
    )
    read = read_file(path)
    assert [(events.source, events.window) for events in read] == [("a.json", (100, 240)), ("b.json", (125, 240))]


def test_traces_in_an_archive_beside_other_json(tmp_path):
    ranks = [json.dumps(trace(device=GEMM, rank=rank, world=2)).encode() for rank in range(2)]
    path = archive_of(tmp_path / "t.zip", rank0__json=ranks[0], run__json=b'{"schema": 1}', rank1__json=ranks[1])
    assert [events.rank for events in read_file(path)] == [0, 1]


def test_an_empty_file_in_an_archive_does_not_decide(tmp_path):
    path = archive_of(tmp_path / "n.zip", a__json=json.dumps(make.neuron_step()).encode(), b__json=b"")
    assert recognise(path).reader == "neuron"
    with refused(DamagedFile, path, "b.json", "0 bytes"):
        read_file(path)


def test_an_archive_of_several_formats_is_refused(tmp_path):
    path = archive_of(tmp_path / "mix.zip", a__json=rocprof_file(), b__json=json.dumps(make.neuron_step()).encode())
    with refused(BadFile, path, "neuron", "rocprof"):
        measure_files([path])


def test_an_error_in_an_archive_names_archive_and_member(tmp_path):
    good = json.dumps(make.neuron_step()).encode()
    path = archive_of(tmp_path / "n.zip", a__json=good, b__json=good[:-40])
    with refused(DamagedFile, path, "b.json"):
        read_file(path)


@pytest.mark.parametrize("container", ["gzip", "zip"])
@pytest.mark.parametrize("kind", KINDS)
def test_unpacked_size_is_limited(kind, container, tmp_path, monkeypatch):
    """32 MiB that packs to 32 kB: neither the limit of the options nor that of memory is exceeded."""
    reader, ending, contents = KINDS[kind]
    bomb = write(tmp_path / f"bomb{ending}", contents(tmp_path) + bytes(1 << 25), container)
    assert bomb.stat().st_size < 1 << 20
    with refused(FileTooLarge, bomb, "8.0 MiB"):
        plugins.load("readers", reader).read(bomb, ReadOptions(limit=1 << 23))
    if reader != "kineto":  # streams; the others hold the file in memory
        monkeypatch.setattr(whole_files, "MAX_BYTES", 1 << 23)
        with refused(FileTooLarge, bomb, "8.0 MiB"):
            plugins.load("readers", reader).read(bomb)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kineto"])
def test_a_cut_gzip_is_damaged(kind, tmp_path):
    reader, ending, contents = KINDS[kind]
    path = write(tmp_path / f"cut{ending}", contents(tmp_path), "gzip")
    path.write_bytes(path.read_bytes()[:-20])
    with refused(DamagedFile, path):
        plugins.load("readers", reader).read(path)


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@given(
    st.sampled_from(METHODS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
    st.integers(0, 10_000),
)
def test_a_damaged_archive_is_read_or_refused(tmp_path_factory, method, changes, cut):
    path = tmp_path_factory.getbasetemp() / "n.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.json", json.dumps(make.neuron_step()))
    data = bytearray(path.read_bytes())
    for position, byte in changes:
        data[position % len(data)] = byte
    path.write_bytes(data[: cut % len(data)] if cut % 3 == 0 else data)
    recognise(path)
    with contextlib.suppress(BadFile):
        read_file(path)


def test_an_archive_of_a_later_version_is_damaged(tmp_path):
    path = archive_of(tmp_path / "n.zip", a__json=json.dumps(make.neuron_step()).encode())
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 6] = 242  # the version needed to extract: 24.2
    path.write_bytes(data)
    with refused(DamagedFile, path, "24.2"):
        measure_files([path])


# --- readers of other packages


class Lines:
    """A reader of another package, which knows neither gzip nor zip."""

    prefix = b"#lines\n"

    def sniff(self, path):
        return path.read_bytes().startswith(self.prefix)

    def read(self, path, options=plugins.AS_WRITTEN):
        rows = Gather(path.name, options.mark)
        for line in path.read_bytes().splitlines()[1:]:
            start, stop = map(int, line.split())
            rows.work("kernel", KERNEL, "stream 0", 0, start, stop)
        return rows.events([])


class Greedy(Lines):
    prefix = b"{"

    def read(self, path, options=plugins.AS_WRITTEN):
        rows = Gather(path.name, options.mark)
        rows.work("mine", KERNEL, "stream 0", 0, 0, 1)
        return rows.events([])


@pytest.fixture
def other_package(monkeypatch):
    """`other_package(class)` registers a reader of another package."""

    def register(reader):
        monkeypatch.setitem(sys.modules, "other_package", types.SimpleNamespace(Reader=reader))
        points = {
            **plugins.names("readers"),
            "other": EntryPoint("other", "other_package:Reader"),
        }
        monkeypatch.setattr(plugins, "names", lambda group: points)

    return register


@pytest.mark.parametrize("container", ["plain", "gzip", "zip"])
def test_a_reader_of_another_package_takes_every_container(container, other_package, tmp_path):
    other_package(Lines)
    path = write(tmp_path / "mine.txt", b"#lines\n5 9\n10 12\n", container)
    (events,) = read_file(path)
    assert events.window == (5, 12)
    assert measure_files([path]).mean.wall_ns == 7


def test_a_reader_of_another_package_is_consulted_first(other_package, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace(device=GEMM)))
    assert read_file(path)[0].window == (0, 200)
    other_package(Greedy)
    assert read_file(path)[0].window == (0, 1)
    assert recognise(path).reader == "kineto"


def test_json_of_a_command_names_no_temporary_file(tmp_path, capsys):
    path = write(tmp_path / "n.json", json.dumps(make.neuron_step()).encode(), "zip")
    assert answer(["trace", str(path), "--json"]) == 0
    assert "trainyard-" not in capsys.readouterr().out
