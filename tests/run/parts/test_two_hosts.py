"""A command on two hosts: two agents of torchrun with stores, host names and wall clocks of their own."""

import json
import os
import subprocess
import sys

import pytest

from tests.ports import free_port
from tests.run.parts.two_hosts import LATE_SCRIPT, SHIFT_S
from trainyard.run.parts.part import joined_run_id, read_part

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def run_on_two_hosts(tmp_path, clock, *options, dies=-1, stores=("a", "b"), **variables):
    """Run the script on hosts node-a (ranks 0, 1) and node-b (ranks 2, 3); returns their (stdout as JSON, stderr)."""
    script = tmp_path / "train.py"
    script.write_text(LATE_SCRIPT)
    port, processes = free_port(), []
    for number, store in enumerate(stores):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--node-rank", str(number)]
        environment = {
            **os.environ, "TRAINYARD_STORE": str(tmp_path / store), "TRAINYARD_NODE": f"node-{'ab'[number]}",
            "OMP_NUM_THREADS": "1", **variables,
        }  # fmt: skip
        if number == 1:
            environment |= {"LD_PRELOAD": str(clock), "CLOCK_SHIFT_S": str(SHIFT_S)}
        command = [sys.executable, "-m", "trainyard.cli.main", "run", "--json", *options, "--", *launcher]
        processes.append(
            subprocess.Popen(
                [*command, str(script), str(dies)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    ended = []
    for process in processes:
        output, messages = process.communicate(timeout=240)
        ended.append((json.loads(output) if output else {}, messages, process.returncode))
    return ended


def test_one_run_names_the_late_rank_across_hosts(tmp_path, shifted_clock):
    (head, messages, code), (other, _, other_code) = run_on_two_hosts(tmp_path, shifted_clock)
    assert (code, other_code) == (0, 0), messages
    assert head["id"] == joined_run_id(head["job_id"])
    assert [(share["node"], share["ranks"]) for share in head["nodes"]] == [("node-a", [0, 1]), ("node-b", [2, 3])]
    assert {sample["rank"] for sample in head["samples"]} == {0, 1, 2, 3}
    late = head["ledgers"][-1]["late"]
    assert max(late, key=late.get) == "3"
    assert 3 * 40e6 < late["3"] < 3 * 120e6  # three ranks wait some 60 ms a step
    assert head["ledgers"][-1]["scope"]["aligned"] == "bounds"
    assert head["findings"][0]["rule"] == "straggler"
    assert [path.name for path in (tmp_path / "a" / "runs").iterdir()] == [head["id"]]
    assert (other["job_id"], other["ledgers"]) == (head["job_id"], [])
    part = read_part(tmp_path / "b" / "runs" / other["id"])
    assert (part.node, part.ranks, part.agreed_by) == ("node-b", (2, 3), "process group")
    for store in ("a", "b"):  # the records of ranks hold the token
        assert not list((tmp_path / store).rglob("job/*"))


def test_parts_meet_in_a_shared_folder_and_store(tmp_path, shifted_clock):
    options = ("--collect", str(tmp_path / "shared"), "--tag", "both", "--profile", "0")
    (head, _, code), (other, _, other_code) = run_on_two_hosts(tmp_path, shifted_clock, *options, stores=("s", "s"))
    assert (code, other_code) == (0, 0)
    assert {sample["rank"] for sample in head["samples"]} == {0, 1, 2, 3}
    runs = tmp_path / "s" / "runs"
    assert {path.name for path in runs.iterdir()} == {head["id"], other["id"]}
    assert "both" in json.loads((runs / head["id"] / "tags.json").read_text())
    assert not (runs / other["id"] / "tags.json").exists()


def test_parts_of_a_job_whose_rank_died_are_kept_and_joined_later(tmp_path, shifted_clock):
    from trainyard.run.parts.join import join
    from trainyard.run.session import Session
    from trainyard.store.store import Store

    ended = run_on_two_hosts(tmp_path, shifted_clock, dies=2, TRAINYARD_COLLECT_S="0")
    assert [code for *_, code in ended] == [4, 4]
    folders = [next((tmp_path / store / "runs").iterdir()) for store in ("a", "b")]
    assert [read_part(folder).ranks for folder in folders] == [(0, 1), (2, 3)]
    run = join(folders, Session(Store(tmp_path / "joined")))
    assert run.state == "failed"
    assert run.missing_ranks == ()
    assert {sample.rank for sample in run.samples} == {0, 1, 2, 3}
    assert "node-b" in run.failure
