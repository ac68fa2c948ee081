"""Jobs on several hosts send reduced traces: the ledgers and findings are those of the whole ones."""

import re
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.run.nodes.test_two_hosts import Hosts
from tests.run.parts.part_maker import rank_document
from tests.trace_maker import write
from trainyard import api
from trainyard.api.run_jobs import reduce_rank_trace
from trainyard.run.nodes.collect import merge
from trainyard.run.nodes.reduce_rank_traces import reduce_rank_traces
from trainyard.store.run_folder import rank_files
from trainyard.trace.measure import measure_files


@pytest.mark.torch
@pytest.mark.slow
def test_ledgers_and_findings_equal_those_of_whole_traces(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, f"127.0.0.1:{free_port()}", {}, steps=8)
    (tmp_path / "job.toml").write_text(hosts.text.replace("profiled = 0", "profiled = 3"))
    try:
        hosts.start_both()
        assert hosts.exit_codes() == [0, 0], hosts.logs
    finally:
        hosts.end()
    run = hosts.run()
    whole = [
        *rank_files(hosts.run_folder / "traces", ".json", ".json.gz"),
        *rank_files(tmp_path / "node1" / run.id / "traces", ".json", ".json.gz"),
    ]
    assert run.trace == ("profiles/rank0.profile", "profiles/rank1.profile")
    assert [path.name.partition(".")[0] for path in whole] == ["rank0", "rank1"]
    measured = measure_files(whole, axis=run.job.trace_axis)
    assert list(run.ledgers) == list(measured.ledgers)
    reduced = api.analyse([hosts.run_folder / name for name in run.trace])
    assert reduced.findings == api.analyse(whole).findings
    sent = int(re.search(r"its part of ([\d,]+) bytes", hosts.logs)[1].replace(",", ""))
    assert sent < whole[1].stat().st_size


def make_node(root: Path, trace_of: int | None) -> Path:
    """The run folder of a node on which rank 1 ran; `trace_of`: its attempt with a trace, None without one."""
    for name in ("samples", "facts", "logs", "life", "traces"):
        (root / name).mkdir(parents=True)
    attempt = trace_of or 0
    sample = (
        f'{{"step":0,"rank":1,"repeat":0,"wall_ns":1,"tokens":1,"memory_bytes":1,"attempt":{attempt},"ended_ns":1}}\n'
    )
    (root / "samples" / "rank1.jsonl").write_text(sample)
    if trace_of is not None:
        write(root / "traces", rank_document(1, 2, None, trace_of, root.name), "rank1.json")
    return root


def test_profile_of_the_last_attempt_replaces_earlier_ones(tmp_path: Path) -> None:
    head, part = make_node(tmp_path / "head", 0), make_node(tmp_path / "part", 1)
    for folder in (head, part, part):  # the second time replaces the profile of the first
        reduce_rank_traces(folder, "7", 2, reduce_rank_trace, lambda _: None)
    merge(part, head)
    assert (head / "traces" / "rank1.json").read_bytes() == (part / "traces" / "rank1.json").read_bytes()
    profile = head / "profiles" / "rank1.profile"
    assert profile.read_bytes() == (part / "profiles" / "rank1.profile").read_bytes()


def test_trace_of_an_earlier_attempt_does_not_hide_a_profile(tmp_path: Path) -> None:
    head, part = make_node(tmp_path / "head", 0), make_node(tmp_path / "part", 1)
    reduce_rank_traces(part, "7", 2, reduce_rank_trace, lambda _: None)
    (part / "traces" / "rank1.json").unlink()  # as in an archive
    merge(part, head)
    assert not list((head / "traces").iterdir())
    assert [path.name for path in (head / "profiles").iterdir()] == ["rank1.profile"]
