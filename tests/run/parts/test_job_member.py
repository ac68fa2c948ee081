"""Agreement between ranks through a process group's store: the job's id, the hosts, and the clocks' offsets."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from trainyard.run.parts import job_member, launcher_variables
from trainyard.run.parts.job_member import JobMember
from trainyard.run.parts.rank_record import read_records

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def connect():
    """A function that opens another client of one TCPStore."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=20))


def members(tmp_path, connect, monkeypatch, hosts, shifts=None):
    """The members of a job, one for each host name in `hosts`; `shifts`: ns that each host's clock is ahead."""
    import time

    joined = []
    for rank, host in enumerate(hosts):
        monkeypatch.setenv(launcher_variables.NODE, host)
        folder = tmp_path / host
        folder.mkdir(exist_ok=True)
        shift = (shifts or {}).get(host, 0)
        joined.append(
            JobMember(folder, rank, connect(), len(hosts), read_ns=lambda shift=shift: time.time_ns() + shift)
        )
    return joined


def test_all_ranks_agree_on_one_id_per_job(tmp_path, connect, monkeypatch):
    joined = members(tmp_path, connect, monkeypatch, ["a", "a", "b"])
    ids = {member.record.job_id for member in joined}
    assert len(ids) == 1
    assert {member.record.agreed_by for member in joined} == {"process group"}
    records = read_records(tmp_path / "a")
    assert [record.rank for record in records] == [0, 1]
    assert records[0] == joined[0].record
    other = JobMember(tmp_path / "b", 2, None, 3)
    assert other.record.job_id not in ids


def test_a_store_without_compare_set_leaves_the_launchers_id(tmp_path, monkeypatch):
    """As torch's EtcdStore, which implements neither `compare_set` nor `append`."""
    import torch.distributed as dist

    class SetAndGet(dist.Store):
        pass

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", SetAndGet)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job7")
    record = job_member.join_job(tmp_path, 1).record
    assert (record.job_id, record.agreed_by) == ("torchelastic-job7", "TORCHELASTIC_RUN_ID")
    assert (record.rank, record.world_size) == (1, 2)
    assert read_records(tmp_path) == [record]


def test_two_jobs_with_one_address_have_different_ids(tmp_path, monkeypatch):
    from torch.distributed import HashStore

    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setenv("MASTER_PORT", "29500")
    (tmp_path / "a").mkdir()
    first, other = (JobMember(tmp_path / "a", 0, HashStore(), 2).record for _ in range(2))
    assert first.job_id != other.job_id
    assert first.job_id.startswith("master-head-29500.")


def test_first_rank_of_each_node_learns_hosts_and_collector(tmp_path, connect, monkeypatch):
    joined = members(tmp_path, connect, monkeypatch, ["a", "a", "b"])
    monkeypatch.setenv("MASTER_ADDR", "head")
    joined[1].publish_collector("1 token")  # only rank 0 may
    joined[0].publish_collector("1234 token")
    for member in joined:
        member.look()
    assert joined[2].record.hosts == {0: "a", 1: "a", 2: "b"}
    addresses, port, token = joined[2].record.collector.split(" ")
    assert (addresses.split(",")[0], port, token) == ("head", "1234", "token")


def test_clock_offsets_are_bounded_by_messages(tmp_path, connect, monkeypatch):
    shifts = {"b": 1000 * 10**9, "c": -77 * 10**9}
    joined = members(tmp_path, connect, monkeypatch, ["a", "b", "b", "c", "a"], shifts)
    with ThreadPoolExecutor(len(joined)) as pool:
        list(pool.map(JobMember.compare_clocks, joined))
    bounds = [member.record.bound for member in joined]
    assert [bound is not None for bound in bounds] == [False, True, False, True, False]
    for bound, shift in ((bounds[1], shifts["b"]), (bounds[3], shifts["c"])):
        assert bound.low_ns <= -shift <= bound.high_ns
        assert bound.reference == 0
        assert bound.high_ns - bound.low_ns < 10**9
        assert bound.rounds == 12


def test_a_host_that_does_not_answer_has_no_bound(tmp_path, connect, monkeypatch):
    monkeypatch.setattr(job_member, "_NEXT_WAIT", timedelta(seconds=5))  # a busy machine may be slow to answer
    joined = members(tmp_path, connect, monkeypatch, ["a", "b", "c"])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(JobMember.compare_clocks, joined[:2]))
    monkeypatch.setattr(job_member, "_FIRST_WAIT", timedelta(milliseconds=1))
    joined[2].compare_clocks()  # too late: rank 0 has answered the others and gone
    assert joined[2].record.bound is None
    assert joined[1].record.bound is not None


def test_one_host_needs_no_comparison(tmp_path, connect, monkeypatch):
    joined = members(tmp_path, connect, monkeypatch, ["a", "a"])
    for member in joined:
        member.compare_clocks()
    assert [member.record.bound for member in joined] == [None, None]


LAUNCHERS = {
    "torchrun": ({"TORCHELASTIC_RUN_ID": "exp 7", "RANK": "3", "WORLD_SIZE": "8"}, "torchelastic-exp_7", 3, 8),
    "torchrun static": (
        {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n0", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"},
        "master-n0-1", 1, 2,
    ),
    "accelerate, deepspeed": (
        {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "RANK": "5", "WORLD_SIZE": "6"}, "master-n0-29500", 5, 6,
    ),
    "srun": (
        {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"},
        "slurm-41-0", 2, 4,
    ),
    "srun, requeued": (
        {"SLURM_JOB_ID": "41", "SLURM_RESTART_COUNT": "2", "SLURM_PROCID": "0"}, "slurm-41-restart2", 0, 1,
    ),
    "sbatch": ({"SLURM_JOB_ID": "41", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, "slurm-41", 0, 1),
    "mpirun": (
        {"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "9", "PMIX_NAMESPACE": "prterun-n0-1@1"},
        "mpi-prterun-n0-1@1", 7, 9,
    ),
    "mpich": ({"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_JOBID": "kvs_1"}, "mpi-kvs_1", 1, 3),
    "ray": ({"RAY_JOB_ID": "01000000", "RANK": "1", "WORLD_SIZE": "2"}, "ray-01000000", 1, 2),
    "none": ({}, "", 0, 1),
    "odd": ({"RANK": "-1", "WORLD_SIZE": "many"}, "", 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_state_rank_size_and_job(launcher):
    environment, job, rank, world_size = LAUNCHERS[launcher]
    assert launcher_variables.launcher_id(environment).id == job
    assert launcher_variables.rank(environment) == rank
    assert launcher_variables.world_size(environment) == world_size
