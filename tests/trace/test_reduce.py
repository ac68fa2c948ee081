"""Reduced profiles: booked exactly as the profiler's file, small, and refused if damaged."""

import contextlib
import lzma

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import PUBLIC_DATA
from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace_maker import write
from trainyard.diagnose.price_findings import diagnose
from trainyard.errors import BadFile, FileTooLarge
from trainyard.events import ClockOffset, Events
from trainyard.plugins import ReadOptions
from trainyard.trace.choose_reader import read_file
from trainyard.trace.measure import measure, measure_files, read
from trainyard.trace.readers.columns import Columns
from trainyard.trace.readers.recognise import REDUCED_PROFILE_MAGIC
from trainyard.trace.reduce import reduce_trace


def same(a, b):
    """Whether two trees of structs, tuples and numpy columns are equal, with the types of the columns."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(st.one_of(st.tuples(rank_traces(0, 2), rank_traces(1, 2)), st.tuples(rank_traces()), st.tuples(cpu_traces())))
def test_booking_reduced_traces_equals_booking_full_ones(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("reduced")
    traces = [write(folder, document, f"rank{number}.json") for number, document in enumerate(documents)]
    profiles = [path.with_suffix(".profile") for path in traces]
    for path, profile in zip(traces, profiles):
        reduce_trace(path, profile)
    ranks, reduced = read(traces), read(profiles)
    assert all(map(same, reduced, ranks))
    full, again = measure(ranks), measure(reduced)
    assert again.ledgers == full.ledgers
    assert diagnose(again.mean, None, again) == diagnose(full.mean, None, full)


SETS = ["cpu_gloo_3ranks", "v100_dlrm_8ranks", "a100_ddp_resnet.json.gz", "h100_qwen_0.5b.json.gz"]


@pytest.mark.parametrize("name", SETS)
def test_reduced_public_traces_book_to_the_same_ledgers(tmp_path, name):
    source = PUBLIC_DATA / "traces" / name
    if not source.exists():
        pytest.skip(f"{source} is not here")
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    for number, file in enumerate(files):
        reduce_trace(file, tmp_path / f"rank{number}.profile")
    full, reduced = measure_files(files), measure_files([tmp_path])
    assert reduced.ledgers == full.ledgers
    assert diagnose(reduced.mean, None, reduced) == diagnose(full.mean, None, full)
    sizes = [sum(file.stat().st_size for file in folder) for folder in (files, tmp_path.iterdir())]
    assert sizes[1] < sizes[0] / 2


@pytest.fixture
def profile(tmp_path):
    source = PUBLIC_DATA / "traces" / "cpu_gloo_3ranks" / "rank1.json"
    if not source.exists():
        pytest.skip(f"{source} is not here")
    path = tmp_path / "rank1.profile"
    reduce_trace(source, path)
    return path


def test_facts_of_the_node_are_added(tmp_path, profile):
    (events,) = read_file(profile)
    near, far = (
        ClockOffset(reference=0, low_ns=-5, high_ns=5, at_ns=events.span[0] - distance) for distance in (10**9, 10**14)
    )
    for offset, expected in ((near, near), (far, None)):
        path = tmp_path / "again.profile"
        reduce_trace(profile, path, host_name="node-b", world_size=64, clock_offset=offset)
        (again,) = read_file(path)
        assert (again.host_name, again.clock_offset, again.rank) == ("node-b", expected, 1)


@given(data=st.data())
def test_damaged_profiles_are_refused_or_read_as_events(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "rank0.profile"
    payload = bytearray(_small_payload())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(REDUCED_PROFILE_MAGIC + lzma.compress(bytes(payload)))
    with contextlib.suppress(BadFile):
        assert all(isinstance(events, Events) for events in Columns().read(path))


def _small_payload():
    from tests.surveys import made_survey

    events = made_survey(0, [])[0]
    host = msgspec.structs.replace(
        events.host,
        **{
            name: np.arange(2, dtype=getattr(events.host, name).dtype) * (name in ("start", "stop"))
            for name in events.host.__struct_fields__
            if name != "collectives"
        },
    )
    host = msgspec.structs.replace(
        host, stop=host.start + 1, parent=np.full(2, -1, np.int32), shape=np.full(2, -1, np.int32)
    )
    from trainyard.trace.readers.embedded import encode_profile

    data = encode_profile(msgspec.structs.replace(events, names=("aten::mm",), host=host))
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not xz",
        lzma.compress(b""),
        lzma.compress(b"\1" * 20),
        lzma.compress(b"\xff" * 64),
        lzma.compress(b"x")[:-3],
    ],
)
def test_broken_containers_are_refused(tmp_path, data):
    path = tmp_path / "rank0.profile"
    path.write_bytes(REDUCED_PROFILE_MAGIC + data)
    with pytest.raises(BadFile):
        Columns().read(path)


def test_unpacked_size_is_limited(tmp_path):
    path = tmp_path / "rank0.profile"
    path.write_bytes(REDUCED_PROFILE_MAGIC + lzma.compress(bytes(1 << 22)))
    with pytest.raises(FileTooLarge):
        Columns().read(path, ReadOptions(limit=1 << 20))
