"""A command on two nodes under mpirun, accelerate and deepspeed: one run that names the late rank.

The nodes are processes of this host with names and stores of their own. The engines are looked up on the PATH; their
Python must have trainyard and torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.run.parts.two_hosts import LATE_SCRIPT
from trainyard.run.parts.part import joined_run_id

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MPI_SCRIPT = (
    """
import os
for name, key in {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK"}.items():
    os.environ[name] = os.environ["OMPI_COMM_WORLD_" + key]
"""
    + LATE_SCRIPT
)
RUN = [sys.executable, "-m", "trainyard.cli.main", "run", "--json", "--"]


def engine(name: str) -> str:
    """The path of an engine's command; skips the test without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def node_variables(tmp_path: Path, node: int) -> dict[str, str]:
    """The environment of a node: a name and a store of its own."""
    name = "ab"[node]
    return {"TRAINYARD_NODE": f"node-{name}", "TRAINYARD_STORE": str(tmp_path / name)}


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **variables}


def results(text: str) -> list[dict[str, Any]]:
    """The JSON documents in the output of several commands."""
    decoder, documents, position = json.JSONDecoder(), [], 0
    while position < len(text := text.rstrip()):
        document, position = decoder.raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        documents.append(document)
    return documents


def check_joined(documents: list[dict[str, Any]], tmp_path: Path, messages: str) -> None:
    """Check that one of the runs has all ranks, and blames rank 3; and that both nodes agreed on the job's id."""
    (joined,) = (document for document in documents if document["ledgers"])
    assert joined["id"] == joined_run_id(joined["job_id"]), messages
    assert {document["job_id"] for document in documents} == {joined["job_id"]}
    assert {rank: share["node"] for share in joined["nodes"] for rank in share["ranks"]} == {
        0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b",
    }  # fmt: skip
    assert {sample["rank"] for sample in joined["samples"]} == {0, 1, 2, 3}
    late = joined["ledgers"][-1]["late"]
    assert max(late, key=late.get) == "3"
    costs = {finding["rule"]: finding["cost_ns"] for finding in joined["findings"]}
    assert costs["straggler"] > 20e6  # of 60 ms, also on a loaded machine
    assert (tmp_path / "a" / "runs" / joined["id"]).is_dir()


def run_on_each_node(tmp_path: Path, *commands: list[str]) -> None:
    """Run `trainyard run -- COMMAND` on each node, and check the joined run."""
    processes = [
        subprocess.Popen(
            [*RUN, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**node_variables(tmp_path, node)),
        )
        for node, command in enumerate(commands)
    ]
    ended = [process.communicate(timeout=240) for process in processes]
    messages = "\n".join(error[-3000:] for _, error in ended)
    assert [process.returncode for process in processes] == [0, 0], messages
    check_joined([document for output, _ in ended for document in results(output)], tmp_path, messages)


@pytest.mark.mpi
def test_mpirun_starts_the_command_for_each_rank(tmp_path: Path) -> None:
    mpirun = [engine("mpirun"), "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    (tmp_path / "train.py").write_text(MPI_SCRIPT)
    for node in range(2):
        assigned = [f"{name}={value}" for name, value in node_variables(tmp_path, node).items()]
        mpirun += [":"] if node else []
        mpirun += ["-np", "2", "env", *assigned, *RUN, sys.executable, str(tmp_path / "train.py"), "-1"]
    variables = environment(MASTER_PORT=str(free_port()))
    ended = subprocess.run(
        mpirun, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    check_joined(results(ended.stdout), tmp_path, ended.stderr[-3000:])


@pytest.mark.accelerate
def test_accelerate_on_two_machines_gives_one_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE_SCRIPT)
    launch = [engine("accelerate"), "launch", "--multi_gpu", "--rdzv_backend", "static", "--num_machines", "2"]
    launch += ["--num_processes", "4", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    run_on_each_node(tmp_path, *([*launch, "--machine_rank", str(node), "train.py", "-1"] for node in range(2)))


@pytest.mark.deepspeed
def test_deepspeed_on_two_nodes_gives_one_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE_SCRIPT)
    (tmp_path / "hostfile").write_text("node-a slots=2\nnode-b slots=2\n")
    launch = [engine("deepspeed"), "--hostfile", "hostfile", "--no_ssh", "--no_local_rank"]
    launch += ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    run_on_each_node(tmp_path, *([*launch, "--node_rank", str(node), "train.py", "-1"] for node in range(2)))
