"""Perfetto exports, decoded with the project's own reader: exact times, and verdicts that add up to the ledger."""

import gzip
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_views import HOSTILE
from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.errors import PlaceUnwritable
from trainyard.formats import protobuf
from trainyard.formats.protobuf import as_double, as_int64, as_text, fields
from trainyard.report.render import perfetto
from trainyard.trace.measure import measure, read


class Slice(NamedTuple):
    start: int
    stop: int
    name: str
    facts: dict


class Track(NamedTuple):
    process: str
    label: str
    slices: list
    counts: list


def decode(path):
    """(process, label) -> track, with tracks of one name merged, as the viewer shows them."""
    names, tracks, processes, open_ = {}, {}, {}, defaultdict(list)
    lanes = defaultdict(lambda: ([], []))
    for field, _, packet in fields(memoryview(gzip.decompress(path.read_bytes()))):
        assert field == 1
        by_field = {key: value for key, _, value in fields(packet)}
        sequence = by_field[10]
        for table, _, entry in fields(by_field.get(12, memoryview(b""))):
            pair = {key: value for key, _, value in fields(entry)}
            names[sequence, table, pair[1]] = as_text(pair[2])
        if 60 in by_field:
            track = {key: value for key, _, value in fields(by_field[60])}
            if 3 in track:
                process = {key: value for key, _, value in fields(track[3])}
                processes[track[1]] = as_text(process[6])
            else:
                tracks[track[1]] = (processes[track[5]], as_text(track[2]))
        if 11 in by_field:
            event = [(key, value) for key, _, value in fields(by_field[11])]
            plain = dict(event)
            slices, counts = lanes[tracks[plain[11]]]
            if plain[9] == 1:
                facts = dict(annotation(value, names, sequence) for key, value in event if key == 4)
                open_[plain[11]].append((by_field[8], names[sequence, 2, plain[10]], facts))
            elif plain[9] == 2:
                start, name, facts = open_[plain[11]].pop()
                slices.append(Slice(start, by_field[8], name, facts))
            else:
                counts.append((by_field[8], as_double(plain[44])))
    assert not any(open_.values())
    by_track = {
        key: Track(*key, sorted(lanes[key][0], key=lambda entry: entry[:3]), lanes[key][1]) for key in tracks.values()
    }
    return by_track, list(processes.values())


def annotation(value, names, sequence):
    by_field = {key: inner for key, _, inner in fields(value)}
    value = names[sequence, 29, by_field[17]] if 17 in by_field else as_int64(by_field[4])
    return names[sequence, 3, by_field[1]], value


def archive(measured, folder, host=False):
    path = folder / "all.pftrace"
    perfetto.write(measured, path, host)
    return decode(path)


def check(measured, folder):
    """Checks that the verdict tiles the window and adds up to the ledger."""
    tracks, processes = archive(measured, folder)
    assert processes == [f"rank {rank.events.rank}" for rank in measured.ranks]
    for process, rank in zip(processes, measured.ranks):
        opening, closing = rank.parts[0].start, rank.parts[-1].stop
        below = min(0, *perfetto_firsts(measured))
        slices = tracks[process, "verdict"].slices if closing > opening else []
        edges = [opening - below, *(entry.stop for entry in slices)] if slices else [opening]
        assert [(entry.start, entry.stop) for entry in slices] == list(pairwise(edges))
        assert edges[-1] == (closing - below if slices else closing)
        shown, booked = Counter(), Counter()
        for entry in slices:
            shown[entry.name, entry.facts.get("phase", "other")] += entry.stop - entry.start
        for ledger in rank.ledgers:
            for entry in ledger.entries:
                booked[str(entry.account), entry.phase] += entry.ns
        assert shown == +booked
        steps = tracks[process, "steps"].slices
        assert [step.stop - step.start for step in steps if step.stop > step.start] == [
            ledger.wall_ns for ledger in rank.ledgers if ledger.wall_ns
        ]
        assert all(sum(ns for ns in step.facts.values()) == step.stop - step.start for step in steps)
    return tracks


def perfetto_firsts(measured):
    for rank in measured.ranks:
        yield from (rank.parts[0].start, *rank.classified.start.tolist(), *rank.waits.start.tolist())
        if len(rank.events.work):
            yield from rank.events.work.start.tolist()


@settings(max_examples=100)
@given(st.one_of(rank_traces(), cpu_traces()), st.sampled_from(["steps", "all"]))
def test_verdict_of_random_traces_adds_up(tmp_path_factory, document, window):
    folder = tmp_path_factory.mktemp("t")
    check(measure(read([write(folder, document)]), window), folder)


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks", "h100_qwen_0.5b.json.gz"])
def test_verdict_of_recorded_traces_adds_up(name, public_trace, tmp_path):
    measured = measure(read([public_trace(name)]))
    tracks = check(measured, tmp_path)
    for rank in measured.ranks:
        process = f"rank {rank.events.rank}"
        waits = tracks.get((process, "waits for late ranks"))
        assert (
            sum(wait.facts["owned_ns"] for wait in waits.slices) == rank.waited.sum() if waits else not len(rank.waited)
        )
        if len(rank.events.work):
            streams = Counter(
                (entry.start, entry.stop, entry.name)
                for stream in rank.events.streams
                for entry in getattr(tracks.get((process, stream)), "slices", [])
            )
            work = rank.events.work
            assert streams == Counter(
                zip(work.start.tolist(), work.stop.tolist(), (rank.events.names[name] for name in work.name))
            )


def test_waits_name_the_late_rank(public_trace, tmp_path):
    measured = measure(read([public_trace("v100_dlrm_8ranks")]))
    tracks, _ = archive(measured, tmp_path)
    cost = Counter()
    for (process, label), track in tracks.items():
        for entry in track.slices if label == "verdict" else ():
            if "late rank" in entry.facts and process != f"rank {entry.facts['late rank']}":
                cost[entry.facts["late rank"]] += entry.stop - entry.start
    assert cost.most_common(1)[0][0] == 7


def test_overlapping_slices_get_separate_tracks(tmp_path):
    spans = [(0, 100), (10, 20), (10, 10), (50, 150), (60, 70), (90, 160), (150, 150)]
    device = [("gemm", 7, start, stop, None) for start, stop in spans]
    tracks, _ = archive(measure(read([write(tmp_path, trace(device=device))])), tmp_path)
    assert [entry[:2] for entry in tracks["rank 0", "stream 7"].slices] == sorted(spans)


def test_excess_overlapping_slices_are_counted(tmp_path):
    device = [("gemm", 7, start, 1000 + start, None) for start in range(200)]
    tracks, _ = archive(measure(read([write(tmp_path, trace(device=device))])), tmp_path)
    assert len(tracks["rank 0", "stream 7"].slices) == 128
    assert ("rank 0", "stream 7: 72 slices that overlap with 128 others were left out") in tracks


def test_host_threads_are_optional(tmp_path):
    host = [("aten::mm", 100, 10, 90, "cpu_op"), ("aten::mul", 100, 20, 30, "cpu_op"), ("other", 7, 5, 6, "cpu_op")]
    measured = measure(read([write(tmp_path, trace(device=[("gemm", 7, 100, 200, 50)], host=host))]))
    assert not any(label.startswith("host") for _, label in archive(measured, tmp_path)[0])
    tracks, _ = archive(measured, tmp_path, host=True)
    shown = {entry[:3] for key, track in tracks.items() if key[1].startswith("host") for entry in track.slices}
    assert {(10, 90, "aten::mm"), (20, 30, "aten::mul"), (5, 6, "other")} <= shown


def test_busy_counter_is_the_fraction_of_work(tmp_path):
    device = [("gemm", 7, 0, 3000, None), ("gemm", 8, 1000, 2000, None), ("gemm", 7, 7000, 10_000, None)]
    tracks, _ = archive(measure(read([write(tmp_path, trace(device=device))]), "all"), tmp_path)
    counts = tracks["rank 0", "busy"].counts
    assert len(counts) == 1001
    assert sum(share / 100 * (after - at) for (at, share), (after, _) in pairwise(counts)) == pytest.approx(6000)
    assert {share for at, share in counts if 3000 <= at < 7000} == {0.0}


def test_unaligned_ranks_are_shifted_and_labelled(tmp_path):
    files = [
        write(tmp_path, trace(device=[("gemm", 7, start, start + 100, None)], rank=rank, world=2, host_name=f"h{rank}"),
              f"{rank}.json")
        for rank, start in enumerate((1_000_000, 5_000))
    ]  # fmt: skip
    tracks, processes = archive(measure(read(files)), tmp_path)
    assert processes == ["rank 0", "rank 1 (clock not aligned: moved to start with the first)"]
    assert {track.slices[0].start for (_, label), track in tracks.items() if label == "stream 7"} == {1_000_000}


def test_negative_timestamps_shift_all_ranks_equally(tmp_path):
    files = [
        write(tmp_path, trace(device=[("gemm", 7, start, start + 5000, None)], rank=rank, world=2, host_name="h"),
              f"{rank}.json")
        for rank, start in enumerate((-500_000, -499_000))
    ]  # fmt: skip
    tracks, _ = archive(measure(read(files)), tmp_path)
    assert [tracks[f"rank {rank}", "stream 7"].slices[0].start for rank in (0, 1)] == [0, 1000]


def test_hostile_names_stay_text(tmp_path):
    device = [(name, 7, 100 * i, 100 * i + 50, None) for i, name in enumerate(HOSTILE)]
    tracks, _ = archive(measure(read([write(tmp_path, trace(device=device))])), tmp_path)
    shown = [entry.name for entry in tracks["rank 0", "stream 7"].slices]
    assert shown == [name.encode("utf-8", "replace").decode() for name in HOSTILE]


def test_output_is_deterministic(tmp_path):
    measured = measure(read([write(tmp_path, trace(device=[("gemm", 7, 0, 100, None)]))]))
    for name in ("a.pftrace", "b.pftrace"):
        perfetto.write(measured, tmp_path / name)
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()


def test_unwritable_path_is_named(tmp_path):
    measured = measure(read([write(tmp_path, trace(device=[("gemm", 7, 0, 100, None)]))]))
    with refused(PlaceUnwritable, tmp_path / "none" / "a.pftrace"):
        perfetto.write(measured, tmp_path / "none" / "a.pftrace")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.integers(-(2**63), 2**63 - 1), st.text()), max_size=8))
def test_protobuf_fields_round_trip(rows):
    data = b"".join(
        protobuf.int_field(f, n) + protobuf.text_field(f, t) + protobuf.double_field(f, n / 3) for f, n, t in rows
    )
    decoded = list(fields(memoryview(data)))
    assert [(f, as_int64(n)) for f, _, n in decoded[::3]] == [(f, n) for f, n, _ in rows]
    assert [as_text(t) for _, _, t in decoded[1::3]] == [t for _, _, t in rows]
    assert [as_double(value) for _, _, value in decoded[2::3]] == [n / 3 for _, n, _ in rows]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_padded_varints_round_trip(values):
    encoded = protobuf.padded_varints(np.array(values, np.int64))
    decoded = [value for varint in encoded for _, _, value in fields(memoryview(protobuf.varint(8) + varint))]
    assert decoded == values
