"""Known models and machines as tables."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.machine import Claim, Machine
from trainyard.report.plans.catalogue import Catalogue, KnownModel, sources
from trainyard.report.view.view import Cell, Column, Table

NOT_PLANNED = "The planner does not predict models marked *."


def tables(catalogue: Catalogue, full: bool = False) -> tuple[Table, ...]:
    """The tables of models and machines that have rows. `full`: with data types, prices and sources."""
    models = tuple(catalogue.models.values())
    candidates = (_models(models, full), _machines(catalogue.machines, full), *((_sources(catalogue),) if full else ()))
    return tuple(table for table in candidates if table.rows)


def _models(models: Sequence[KnownModel], full: bool) -> Table:
    """The table of known models with parameters in millions; `full` adds the source of each."""
    return Table(
        title="Model",
        notes=() if all(model.planned for model in models) else (NOT_PLANNED,),
        columns=(
            Column(title="Model"), Column(title="parameters, M", digits=0), Column(title="active, M", digits=0),
            Column(title="layers", digits=0), Column(title="hidden size", digits=0), Column(title="workload"),
            *((Column(title="source", prose=True),) if full else ()),
        ),
        rows=tuple(
            (
                model.name + " *" * (not model.planned), _millions(model.parameters),
                _millions(model.active), model.layers, model.hidden_size, model.workload,
                *((model.source,) if full else ()),
            )
            for model in models
        ),
    )  # fmt: skip


def _millions(count: int | None) -> Cell:
    """Millions of parameters; `<1` for the small models of tests."""
    return count and ("<1" if count < 1e6 else count / 1e6)


def _machines(machines: dict[str, Machine], full: bool) -> Table:
    """The table of machines: memory, peaks and links of one device of each. `full`: a column for each data type, and
    prices."""
    all_dtypes = dict.fromkeys(dtype for machine in machines.values() for dtype in machine.device.peak)
    dtypes = [(dtype,) for dtype in all_dtypes] if full else [("bfloat16", "float16"), ("float8",)]
    heads = [f"{dtype}, TFLOP/s" for dtype in all_dtypes] if full else ["16 bits, TFLOP/s", "float8, TFLOP/s"]
    return Table(
        title="Machine",
        notes=(
            "Memory, peaks without sparsity, memory bandwidth and links (one direction) of one device."
            + " 16 bits: bfloat16, else float16." * (not full),
        ),
        columns=(
            Column(title="Machine"), Column(title="devices per node", digits=0), Column(title="memory, GB", digits=0),
            *(Column(title=head, digits=0) for head in heads), Column(title="memory bandwidth, GB/s", digits=0),
            Column(title="link in node, GB/s", digits=0), Column(title="link between nodes, GB/s", digits=0),
            *((Column(title="$/h", digits=2),) if full else ()),
        ),
        rows=tuple(_machine_row(name, machine, dtypes, full) for name, machine in machines.items()),
    )  # fmt: skip


def _machine_row(name: str, machine: Machine, dtypes: Sequence[tuple[str, ...]], full: bool) -> tuple[Cell, ...]:
    """The cells of a machine's row. `dtypes`: for each column of peaks, the data types of which it shows the first that
    the device has."""
    device, between = machine.device, machine.inter_node
    peaks = [next((device.peak[dtype] for dtype in column if dtype in device.peak), None) for column in dtypes]
    return (
        name, machine.per_node, device.memory.value / 1e9, *(_scaled(peak, 1e12) for peak in peaks),
        device.bandwidth.value / 1e9, machine.intra_node.bandwidth.value / 1e9,
        _scaled(between.bandwidth if between else None, 1e9),
        *((_scaled(machine.price, 1.0),) if full else ()),
    )  # fmt: skip


def _sources(catalogue: Catalogue) -> Table:
    """A row for each source of a machine."""
    rows = tuple((name, source) for name, machine in catalogue.machines.items() for source in sources(machine))
    return Table(title="Machine", notes=(), columns=(Column(title=""), Column(title="source", prose=True)), rows=rows)


def _scaled(claim: Claim | None, divisor: float) -> float | None:
    """The value of a published number divided by `divisor`; None if the number is unknown."""
    return claim.value / divisor if claim else None
