"""The models and machines that are known by name, as the document of `trainyard plan list --json`."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.machine import Claim, Machine

CATALOGUE_SCHEMA = "trainyard/catalogue/2"


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the package. `parameters`: the published count, else computed from its sizes; None if neither is
    known. `active`: parameters used per token, if fewer. `layers`, `hidden_size`: None for sizes without them."""

    name: str
    workload: str
    parameters: int | None
    active: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    planned: bool = True
    """Whether `trainyard plan` predicts it; the others are trained by `trainyard run` only."""
    source: str = ""
    """The publication or repository of its sizes."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Known models and machines by name. `machines`: as their files in the package; each number has its source."""

    schema: Literal["trainyard/catalogue/2"] = CATALOGUE_SCHEMA
    models: dict[str, KnownModel] = {}
    machines: dict[str, Machine] = {}

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        from trainyard.report.plans import catalogue_tables
        from trainyard.report.render.html_tables import tables_html

        return tables_html("Known models and machines", catalogue_tables.tables(self, full=True))


def sources(machine: Machine) -> tuple[str, ...]:
    """The distinct sources (data sheets, measurements) of a machine's numbers, in the order of the numbers."""
    device, torus = machine.device, machine.intra_node.torus
    claims: tuple[Claim | None, ...] = (
        device.memory, device.bandwidth, *device.peak.values(), device.power, machine.intra_node.bandwidth,
        *(axis.bandwidth for axis in (torus.axes if torus else ())),
        machine.inter_node.bandwidth if machine.inter_node else None, machine.price,
    )  # fmt: skip
    return tuple(dict.fromkeys(claim.source for claim in claims if claim))
