"""Operations whose results differ between two runs of one command although their inputs do not."""

from __future__ import annotations

from collections import defaultdict

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.logical_tensors import LogicalKey, is_initial_weight
from trainyard.numerics.tensor_record import Role
from trainyard.numerics.triage.find_nonfinite import describe_record
from trainyard.numerics.triage.nonreproducible import switch_for
from trainyard.numerics.triage.triage_result import Determinism, NotReproducible

_OPERATIONS_OF_ROLES: dict[Role, str] = {"weight": "optimizer step", "optimizer_state": "optimizer step"}


def check_determinism(first: Tensors, second: Tensors, device: str) -> Determinism:
    """Compares the tensors of two runs bit by bit. Tensors without a hash are not compared."""
    hashed = [key for key, record in first.items() if key in second and record.hash and second[key].hash]
    common = [key for key in hashed if key.tensor.role != "random_state"]
    differing = {key for key in common if first[key].hash != second[key].hash}
    states = {key for key in hashed if key.tensor.role == "random_state" and first[key].hash != second[key].hash}
    flows: dict[int, DataFlow] = {}
    origins: dict[str, list[LogicalKey]] = defaultdict(list)
    for key in common:
        if key not in differing or not key.tensor.operation:
            continue
        if key.tensor.step not in flows:
            flows[key.tensor.step] = DataFlow(first, key.tensor.step)
        if not any(source in differing for source in flows[key.tensor.step].inputs(key)) and not _follows_weights(
            key, differing
        ):
            origins[key.tensor.operation].append(key)
    operations = [
        _not_reproducible(operation, keys, first, device)
        for operation, keys in sorted(origins.items(), key=lambda item: first[item[1][0]].index)
    ]
    return Determinism(
        compared=len(common),
        identical=len(common) - len(differing),
        unmatched=len(first.keys() ^ second.keys()),
        operations=tuple(operations),
        random_state_step=_first_step(states, "random_state"),
        data_step=_first_step(differing, "data"),
    )


def _follows_weights(key: LogicalKey, differing: set[LogicalKey]) -> bool:
    """Whether weights already differed before the step of a tensor: they are not among its recorded inputs."""
    step = key.tensor.step
    return any(
        other.tensor.role == "weight" and other.tensor.step < step + is_initial_weight(other.tensor)
        for other in differing
    )


def _first_step(differing: set[LogicalKey], role: Role) -> int | None:
    return min((key.tensor.step for key in differing if key.tensor.role == role), default=None)


def _not_reproducible(operation: str, keys: list[LogicalKey], records: Tensors, device: str) -> NotReproducible:
    switch = switch_for(operation, device)
    return NotReproducible(
        operation=operation,
        count=len(keys),
        tensor=describe_record(keys[0], records[keys[0]]),
        reason=switch.reason,
        switch=switch.switch,
        source=switch.source,
    )
