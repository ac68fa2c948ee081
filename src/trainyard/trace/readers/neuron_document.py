"""The document that neuron-profile writes (`neuron-profile view --output-format json`): the fields that are read.

Source: the Neuron Profile User Guide (https://awsdocs-neuron.readthedocs-hosted.com) and the terminology that each file
brings along. Times are ns since the start of the program; the summary's are seconds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_TimeNs = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
_DurationNs = Annotated[int, msgspec.Meta(ge=0, lt=2**61)]


class Instruction(msgspec.Struct):
    """An executed instruction: `timestamp` and `duration` in ns; `label`: the engine's row; `layer`: the module;
    `hlo_attrs`: JSON, a list of `SourceLine`."""

    timestamp: _TimeNs
    duration: _DurationNs
    label: str = ""
    opcode: str = ""
    hlo_name: str | None = None
    layer: str | None = None
    instruction_type: str | None = None
    hlo_attrs: str | None = None

    @property
    def stop(self) -> int:
        return self.timestamp + self.duration


class SourceLine(msgspec.Struct):
    """The line of the user's program from which the compiler made an operation; empty if it is not recorded."""

    source_file: str = ""
    source_line: str | int = ""
    op_type: str = ""


class Dma(msgspec.Struct):
    """A DMA packet, or (`aggregated` is "yes") a transfer of several packets. `subgroup`: the queue; `id`: a transfer's
    number, which its packets repeat as `packet_aggregation_id`."""

    timestamp: _TimeNs
    duration: _DurationNs
    subgroup: str = ""
    variable: str = ""
    queue_type: str = ""
    transfer_size: int = -1
    aggregated: str = "no"
    id: int = -1
    packet_aggregation_id: int | None = None
    is_cc_dma: str = "no"


class ActiveTime(msgspec.Struct):
    """An interval in which an engine was active, ns."""

    engine: str
    start_ts: _TimeNs
    end_ts: _TimeNs


class Summary(msgspec.Struct):
    """The file's own totals, as far as they are compared. `nc_idx`: number of the NeuronCore; `total_active_time`: s;
    counts of instructions and packets."""

    nc_idx: int | str | None = None
    instance_type: str | None = None
    total_active_time: float | None = None
    tensor_engine_instruction_count: int = 0
    vector_engine_instruction_count: int = 0
    scalar_engine_instruction_count: int = 0
    gpsimd_engine_instruction_count: int = 0
    sync_engine_instruction_count: int = 0
    static_dma_packet_count: int = 0
    software_dynamic_dma_packet_count: int = 0
    hardware_dynamic_dma_packet_count: int = 0

    @property
    def instructions(self) -> int:
        """The number of the engines' instructions; 0 if it is not recorded."""
        return (
            self.tensor_engine_instruction_count
            + self.vector_engine_instruction_count
            + self.scalar_engine_instruction_count
            + self.gpsimd_engine_instruction_count
            + self.sync_engine_instruction_count
        )

    @property
    def packets(self) -> int:
        """The number of DMA packets; 0 if it is not recorded."""
        return (
            self.static_dma_packet_count
            + self.software_dynamic_dma_packet_count
            + self.hardware_dynamic_dma_packet_count
        )


class Queue(msgspec.Struct):
    """A DMA queue: its name and number, and the number of its DMA engine."""

    q_name: str
    q_idx: int
    q_eng_idx: int


class ProfilerWarning(msgspec.Struct):
    message: str = ""


class NeuronDocument(msgspec.Struct):
    """The file's fields that are read; instructions and packets are decoded one by one."""

    summary: list[msgspec.Raw] | None = None
    instruction: list[msgspec.Raw] | None = None
    dma: list[msgspec.Raw] | None = None
    dma_queues_info: list[msgspec.Raw] | None = None
    active_time: list[msgspec.Raw] | None = None
    warnings: list[msgspec.Raw] | None = None
    trace_events: msgspec.Raw = msgspec.Raw(b"")
