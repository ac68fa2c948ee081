"""Verdicts on hangs: simulated NCCL jobs with planted faults, in every form and version of the dumps."""

from __future__ import annotations

import random

import pytest

from tests.hangs.nccl_job import DEVICE_FAULTS, HOST_FAULTS, PROGRAM_FAULTS, STACKS, Job, Slot, draw, dumps_of, encode
from trainyard.hangs.decode_record import decode_record
from trainyard.hangs.find_culprit import find_culprit
from trainyard.hangs.flight_record import FlightRecord, RankState
from trainyard.hangs.stack_text import parse_stack
from trainyard.hangs.verdict import HangAnalysis

VERSIONS = ("2.0", "2.2", "2.4", "2.6", "2.9", "2.10")


def judge(job: Job, form: str = "pickle", with_state: bool = True, **options: object) -> HangAnalysis:
    """The verdict from the dumps of `job`. `with_state`: with the stack or the process state of the faulty rank."""
    records = {
        rank: decode_record(encode(document, form), f"nccl_trace_rank_{rank}", rank)
        for rank, document in dumps_of(job, **options).items()  # type: ignore[arg-type]
    }
    if with_state and job.kind in HOST_FAULTS:
        record = records.get(job.rank, FlightRecord(job.rank))
        state = RankState(
            exit_code=-9 if job.kind == "dead_process" else None,
            is_stopped=job.kind == "stopped_process",
            stack=parse_stack(STACKS.get(job.kind, "")),
        )
        records[job.rank] = record._replace(state=state)
    return find_culprit(list(records.values()))


@pytest.mark.parametrize("kind", [*PROGRAM_FAULTS, *HOST_FAULTS, *DEVICE_FAULTS])
def test_verdicts_on_recorded_nccl_dumps(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311
    exact, wrong = 0, []
    for number in range(40):
        job = draw(kind, chance)
        form = ("pickle", "json")[number % 2]
        result = judge(job, form, version=VERSIONS[number % len(VERSIONS)], frames=form == "pickle")
        expected = () if kind == "network" else (job.rank,)
        if (result.kind, result.ranks) == (kind, expected):
            exact += 1
        else:
            wrong.append((job, result.summary, result.evidence))
    assert exact >= 39, wrong


@pytest.mark.parametrize("kind", ["dead_process", "stopped_process", "host_stuck", "data_loader"])
def test_dumps_alone_name_the_rank_and_allow_the_kind(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311
    for _ in range(20):
        job = draw(kind, chance)
        result = judge(job, with_state=False)
        assert result.ranks == (job.rank,), (job, result)
        assert kind in (result.kind, *result.alternatives)


@pytest.mark.parametrize("kind", [*PROGRAM_FAULTS, *HOST_FAULTS])
def test_overwritten_buffers_still_name_the_rank(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311
    for _ in range(20):
        job = draw(kind, chance)
        result = judge(job, buffer=max(2 * len(job.slots), 6))
        assert job.rank in result.ranks, (job, result)


def test_healthy_job_has_no_hang() -> None:
    job = Job(2, [(0, 1)], [Slot("all_reduce", 0, 64)], "none", 0, 0, 0)
    assert judge(job).kind == "no_hang"


def test_two_ranks_without_history_are_both_named() -> None:
    job = Job(2, [(0, 1)], [Slot("all_reduce", 0, 64)], "wrong_size", 0, 0, 0)
    result = judge(job)
    assert (result.kind, result.ranks) == ("wrong_size", (0, 1))


def test_one_of_two_records_decides_nothing_about_devices() -> None:
    job = Job(2, [(0, 1)], [Slot("all_reduce", 0, 64)], "network", 0, 1, 0)
    document = dumps_of(job)[0]
    del document["pg_config"]
    result = find_culprit([decode_record(encode(document, "json"), "rank_0", 0)])
    assert result.kind == "cannot_tell"


def one_record(job: Job, rank: int, **changes: object) -> HangAnalysis:
    """The verdict from the dump of one rank of `job`, whose entries have `changes`; completed ones keep their state."""
    document = dumps_of(job)[rank]
    for entry in document["entries"]:
        entry |= {**changes, "state": entry["state"]} if entry["state"] == "completed" else changes
    return find_culprit([decode_record(encode(document, "json"), f"rank_{rank}", rank)])


def test_one_record_shows_a_device_that_does_not_start() -> None:
    chance = random.Random(1)  # noqa: S311
    for _ in range(40):
        job = draw("device_stuck", chance)
        result = one_record(job, job.rank)
        assert (result.kind, result.ranks) == ("device_stuck", (job.rank,)), (job, result)


@pytest.mark.parametrize("kind", [*PROGRAM_FAULTS, *HOST_FAULTS, *DEVICE_FAULTS])
def test_one_record_does_not_make_a_device_that_waits_a_stuck_one(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311
    for _ in range(20):
        job = draw(kind, chance)
        for rank in set(dumps_of(job)) - ({job.rank} if kind == "device_stuck" else set()):
            assert one_record(job, rank).kind != "device_stuck", (job, rank)


def test_without_start_times_one_record_says_how_to_record_them() -> None:
    job = Job(8, [tuple(range(8))], [Slot("all_reduce", 0, 64)], "device_stuck", 3, 1, 0)
    without_times = {"time_discovered_started_ns": None, "state": "scheduled"}
    for rank in (3, 4):
        result = one_record(job, rank, **without_times)
        assert result.kind == "cannot_tell"
        assert "TORCH_NCCL_ENABLE_TIMING=1" in result.summary
    waiting = one_record(job, 4)
    assert waiting.kind == "cannot_tell"
    assert "device of rank 4 has started" in waiting.summary
    assert one_record(job, 3).ranks == (3,)


def test_collective_behind_a_transfer_without_peers_does_not_make_its_device_stuck() -> None:
    """The transfer, whose peer is not recorded, may wait for that rank."""
    job = Job(2, [(0, 1)], [Slot("all_reduce", 0, 64)], "device_stuck", 0, 2, 0)
    document = dumps_of(job)[0]
    last = document["entries"][-1]
    transfer = {**last, "is_p2p": True, "p2p_seq_id": 1, "profiling_name": "nccl:send", "state": "started"}
    document["entries"][-1:] = [transfer, {**last, "record_id": last["record_id"] + 1}]
    assert find_culprit([decode_record(encode(document, "json"), "rank_0", 0)]).kind != "device_stuck"
    document["entries"].remove(transfer)
    assert find_culprit([decode_record(encode(document, "json"), "rank_0", 0)]).kind == "device_stuck"


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_device_of_the_only_rank_is_stuck(state: str) -> None:
    job = Job(1, [(0,)], [Slot("all_reduce", 0, 64)], "device_stuck", 0, 2, 0)
    result = one_record(job, 0, state=state)
    assert (result.kind, result.ranks) == ("device_stuck", (0,))
    document = dumps_of(job)[0]
    del document["pg_config"]
    result = find_culprit([decode_record(encode(document, "json"), "rank_0", 0)])
    assert result.kind == "device_stuck", "it has not started, whoever else is a member"


def test_most_records_missing_decides_nothing() -> None:
    job = Job(8, [tuple(range(8))], [Slot("all_reduce", 0, 64)], "host_stuck", 3, 1, 0)
    document = dumps_of(job)[0]
    result = find_culprit([decode_record(encode(document, "json"), "rank_0", 0)])
    assert (result.kind, result.ranks) == ("cannot_tell", ())
    assert result.missing == tuple(range(1, 8))


def test_damaged_record_does_not_make_its_rank_dead() -> None:
    job = Job(3, [(0, 1, 2)], [Slot("all_reduce", 0, 64)], "dead_process", 1, 2, 0)
    records = [decode_record(encode(document, "json"), str(rank), rank) for rank, document in dumps_of(job).items()]
    assert find_culprit(records).kind == "dead_process"
    assert find_culprit(records, unreadable=[1]).kind == "cannot_tell"


def transfer(rank: int, name: str, state: str, elements: int = 8) -> FlightRecord:
    """A record with one send or receive."""
    document = {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [
            {
                "record_id": 0, "process_group": ["0", "default_pg"], "p2p_seq_id": 1, "collective_seq_id": 0,
                "profiling_name": f"nccl:{name}", "is_p2p": True, "state": state, "input_sizes": [[elements]],
            }
        ],
    }  # fmt: skip
    return decode_record(encode(document, "json"), str(rank), rank)


def test_send_without_receive_names_the_receiver() -> None:
    idle = FlightRecord(1, groups=transfer(0, "send 0->1", "started").groups)
    result = find_culprit([transfer(0, "send 0->1", "started"), idle])
    assert (result.kind, result.ranks, result.operation) == ("missing_collective", (1,), "send")


def test_transfer_of_different_sizes_is_a_wrong_size() -> None:
    result = find_culprit([transfer(0, "send 0->1", "started"), transfer(1, "recv 1<-0", "started", 16)])
    assert result.kind == "wrong_size"


def test_groups_entered_in_opposite_order_form_a_cycle() -> None:
    def record(rank: int, order: tuple[int, int]) -> FlightRecord:
        entries = [
            {
                "record_id": index, "process_group": [str(group), ""], "collective_seq_id": 1, "pg_id": group,
                "profiling_name": "nccl:all_reduce", "state": "started", "input_sizes": [[8]], "time_created_ns": index,
            }
            for index, group in enumerate(order[:1])
        ]  # fmt: skip
        config = {str(group): {"name": str(group), "desc": "", "ranks": "[0, 1, 2]"} for group in (1, 2)}
        return decode_record(encode({"version": "2.4", "pg_config": config, "entries": entries}, "json"), "x", rank)

    result = find_culprit([record(0, (1, 2)), record(1, (2, 1)), record(2, (1, 2))])
    assert (result.kind, result.ranks) == ("wrong_order", (1,))


def test_uneven_sizes_are_no_mismatch() -> None:
    def record(rank: int) -> FlightRecord:
        entry = {
            "record_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "state": "started",
            "profiling_name": "nccl:all_to_all", "input_sizes": [[8 + rank]], "output_sizes": [[9 - rank]],
        }  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        return decode_record(encode({"version": "2.4", "pg_config": config, "entries": [entry]}, "json"), "x", rank)

    assert find_culprit([record(0), record(1)]).kind == "network"
