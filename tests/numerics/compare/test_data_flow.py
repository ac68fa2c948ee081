"""The search for sources of a tensor against a brute-force search of paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.tensor_record import TensorRecord

graphs = st.integers(1, 12).flatmap(
    lambda size: st.tuples(*(st.sets(st.integers(0, max(0, at - 1)), max_size=3 if at else 0) for at in range(size)))
)


def reachable(graph: tuple[set[int], ...], at: int, until: set[int]) -> set[int]:
    """All sources of a tensor by recursion over paths, which end at `until`."""
    sources: set[int] = set()
    for source in graph[at]:
        sources.add(source)
        if source not in until:
            sources |= reachable(graph, source, until)
    return sources


@given(graphs, st.data())
def test_sources_are_those_of_all_paths(graph: tuple[set[int], ...], data: st.DataObject) -> None:
    until = data.draw(st.sets(st.integers(0, len(graph) - 1)))
    records = [
        TensorRecord(
            index=at, step=0, phase="forward", role="output", operation="aten.add", call=at, inputs=tuple(inputs)
        )
        for at, inputs in enumerate(graph)
    ]
    keys = [LogicalKey(record.key, 0) for record in records]
    flow = DataFlow(dict(zip(keys, records)), 0)
    last = len(graph) - 1
    sources = list(flow.sources(keys[last], {keys[at] for at in until}))
    assert len(sources) == len(set(sources))
    assert set(sources) == {keys[at] for at in reachable(graph, last, until)}


def test_inputs_that_are_not_in_the_record_are_left_out() -> None:
    record = TensorRecord(index=3, step=1, phase="forward", role="output", inputs=(0, 3, 99))
    key = LogicalKey(record.key, 0)
    assert DataFlow({key: record}, 1).inputs(key) == []
