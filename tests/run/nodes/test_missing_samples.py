"""Samples that a run on several hosts lacks."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiny_job import TWO_REPLICAS
from trainyard import job_file
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Run, Sample
from trainyard.run.nodes.missing_samples import describe_missing_samples, missing_samples

JOB = job_file.parse(TWO_REPLICAS + "[recovery]\nnodes = 2\nmax_restarts = 4\nmin_nodes = 1\n", "job.toml")
RUN = Run(id="0" * 8, job=JOB, started="2026-01-01T00:00:00+00:00")


def run_with(samples: set[tuple[int, int, int]]) -> Run:
    """A run with samples of (rank, step, attempt)."""
    return replace(
        RUN,
        samples=tuple(
            Sample(step=step, rank=rank, repeat=0, wall_ns=1, tokens=1, memory_bytes=1, attempt=attempt)
            for rank, step, attempt in sorted(samples)
        ),
    )


SAMPLES = st.sets(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 2)))


@given(samples=SAMPLES, nodes=st.dictionaries(st.integers(0, 2), st.integers(1, 2)))
def test_missing_samples_as_by_brute_force(samples: set[tuple[int, int, int]], nodes: dict[int, int]) -> None:
    run = run_with(samples)
    events = [JobEvent(type="launched", at=1, attempt=attempt, nodes=count) for attempt, count in nodes.items()]
    expected = set()
    for step in range(max((step for _, step, _ in samples), default=-1) + 1):
        attempts = [attempt for _, at, attempt in samples if at == step]
        ranks = nodes.get(max(attempts), 2) if attempts else 2
        expected |= {
            (rank, step) for rank in range(ranks) if not attempts or (rank, step, max(attempts)) not in samples
        }
    missing = missing_samples(run, events)
    assert {(rank, step) for ranks, steps in missing.items() for rank in ranks for step in steps} == expected
    assert len(describe_missing_samples(run, events)) == len(missing)
    assert all(list(steps) == sorted(set(steps)) for steps in missing.values())
