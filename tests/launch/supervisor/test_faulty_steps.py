"""Ranks that end together at a faulty step: the supervisor's decision, incidents and goodput."""

import pytest

from tests.launch.supervisor.test_recovery import World, event, running, step, world
from tests.refused import missing_values
from trainyard.launch.launch_spec import LEFT, ROLLED_BACK, STOPPED
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Sample
from trainyard.run.record import goodput

MESSAGE = "loss spike in step 5: the loss is 9"


def end_ranks(job_world: World, exit_code: int) -> None:
    for rank in job_world.ranks:
        job_world.change(rank, exit_code=exit_code, ended_ns=job_world.now.epoch, reason=MESSAGE)


def test_rollbacks_start_all_ranks_again_and_take_no_restart() -> None:
    job_world = running(world(max_restarts=0))
    for generation in (1, 2, 3):
        end_ranks(job_world, ROLLED_BACK)
        job_world.turn()
        running(job_world)
        assert job_world.plan.generation == generation
    assert (job_world.supervision.restarts, job_world.faults) == (0, [])
    end_ranks(job_world, 0)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.result == 0


def test_ranks_that_roll_back_one_after_another_are_no_failure() -> None:
    job_world = running(world(max_restarts=0))
    job_world.steps = False
    for rank in (2, 0, 3, 1):
        job_world.turn(20)
        job_world.change(rank, exit_code=ROLLED_BACK, ended_ns=job_world.now.epoch)
    job_world.until(lambda: job_world.plan.generation == 1)
    assert job_world.faults == []


def test_stop_ends_the_job_although_restarts_are_left() -> None:
    job_world = running(world(max_restarts=5))
    end_ranks(job_world, STOPPED)
    job_world.until(lambda: job_world.supervision.result is not None)
    failure = job_world.supervision.failure
    assert failure is not None
    assert (job_world.supervision.result, job_world.plan.generation, job_world.faults) == (4, 0, [])
    assert failure.summary == f"{MESSAGE}."
    assert missing_values(failure.next_step, "on_non_finite", "on_loss_spike", "$.recipe") == []


def test_job_that_is_asked_to_leave_is_not_rolled_back() -> None:
    job_world = running(world())
    job_world.supervision.notice(job_world.now)
    end_ranks(job_world, ROLLED_BACK)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert (job_world.supervision.result, job_world.plan.generation) == (LEFT, 0)


def history(action: str) -> tuple[list[JobEvent], list[Sample]]:
    """A job whose step 2 is faulty: from second 3 to 4, with an examination of half a second."""
    fault = event("fault", 4.5, kind="non_finite", noticed=4.5, step=2, rank=1, action=action, message=MESSAGE)
    faulty = Sample(**{**as_fields(step(2, 4)), "skipped": True})
    begin = [event("started", 0), event("launched", 1, nodes=1)]
    if action == "skip":
        return [*begin, fault, event("ended", 6)], [step(0, 2), step(1, 3), faulty, step(3, 5.5)]
    if action == "stop":
        return [*begin, fault, event("ended", 6)], [step(0, 2), step(1, 3), faulty]
    again = [event("launched", 5, attempt=1, nodes=1), event("ended", 9, attempt=1)]
    return [*begin, fault, *again], [
        step(0, 2), step(1, 3), faulty, step(1, 7, attempt=1), step(3, 8, attempt=1),
    ]  # fmt: skip


def as_fields(sample: Sample) -> dict[str, object]:
    return {name: getattr(sample, name) for name in sample.__struct_fields__}


@pytest.mark.parametrize(
    ("action", "restart_s", "lost_s", "resumed_step", "spent"),
    [
        ("skip", 0.0, 0.0, -1, {"good": 3.5, "lost": 1.0, "init": 1.0, "finish": 0.5}),
        ("stop", 0.0, 0.0, -1, {"good": 2.0, "lost": 1.5, "init": 1.0, "finish": 1.5}),
        (
            "rollback",
            1.5,
            2.5,
            1,
            {"good": 3.0, "lost": 1.5, "restart": 0.5, "init": 2.0, "recompute": 1.0, "finish": 1.0},
        ),
    ],
)
def test_cost_of_a_faulty_step(
    action: str, restart_s: float, lost_s: float, resumed_step: int, spent: dict[str, float]
) -> None:
    events, samples = history(action)
    (incident,) = goodput.incidents(events, samples)
    assert (incident.kind, incident.action, incident.step, incident.rank) == ("non_finite", action, 2, 1)
    assert (incident.restart_s, incident.lost_s, incident.resumed_step) == (restart_s, lost_s, resumed_step)
    assert goodput.goodput(events, samples) == spent
