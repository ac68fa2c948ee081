"""Decodes a collective from a profiler's file: its name, members, size and the mesh axis it runs on.

The arguments (`args`) are those that PyTorch records for a collective's kernel or annotation, by name, as parsed from
the file: any of them may be missing or of another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainyard.events import Collective, Events
from trainyard.redact import redact
from trainyard.vendors.kernel_names import collective_of

_BYTES_OF_DTYPE = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "long": 8,
    "long int": 8, "int64": 8, "int32": 4, "char": 1, "int8": 1, "byte": 1, "uint8": 1, "unsigned char": 1, "bool": 1,
    "short": 2, "signed char": 1, "uint16": 2, "uint32": 4, "uint64": 8, "unsigned short": 2, "unsigned int": 4,
    "unsigned long": 8, "complexhalf": 4, "complexfloat": 8, "complexdouble": 16, "complex<half>": 4,
    "complex<float>": 8, "complex<double>": 16, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes per element by the lower-case name that torch records, of a dtype or of a C++ type. An element of
`float4_e2m1fn_x2` is a byte that packs two values."""
_NOT_IN_AXIS = re.compile(r"[^A-Za-z0-9_.\-]+")
_MAX_VALUE, _MAX_RANKS = 2**62, 2**31
"""Upper bounds (exclusive) of sizes and sequence numbers, and of ranks: columns are 64 and 32 bits wide."""
_COLLECTIVE_SPAN = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):(?P<name>\w+)")


def group_of(collective: Collective, events: Events) -> str:
    """The mesh axis of a collective: from its group's description (`mesh_<axis>`), else for all ranks the layout's only
    axis or `world`, else `sub<number of members>`; empty if the file does not identify the group. `events`: of the
    rank, for the sizes of the job and of its groups."""
    if collective.group.startswith("mesh_"):
        return _NOT_IN_AXIS.sub("_", collective.group.removeprefix("mesh_"))[:64] or "world"
    world = events.world
    # If the job has no other groups, a collective without members is one of all ranks.
    only_world = bool(events.group_sizes) and all(size in (1, world) for size in events.group_sizes)
    members = collective.members or (world if only_world else 0)
    if not members:
        return ""
    return (events.axis or "world") if members >= world else f"sub{members}"


def names_collective(name: str) -> bool:
    """Whether an annotation names a collective: `gloo:all_reduce`, `nccl:broadcast`."""
    return _COLLECTIVE_SPAN.match(name) is not None


def collective_from_args(name: str, args: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> Collective:
    """Decodes the name and args of a collective's kernel or annotation. `groups`: name of a process group of the file
    -> its description, with the keys `ranks`, `pg_size` and `pg_desc`."""
    span = _COLLECTIVE_SPAN.match(name)
    stated_name = args.get("Collective name")
    group_name = str(args.get("Process Group Name", ""))
    group_facts = groups.get(group_name, {}) if group_name else {}
    ranks = _decode_integers(args.get("Process Group Ranks")) or _decode_integers(group_facts.get("ranks"))
    members = args.get("Group size", group_facts.get("pg_size"))
    collective = collective_of(stated_name if isinstance(stated_name, str) else span["name"] if span else name)
    return Collective(
        name=collective,
        group=redact(str(args.get("Process Group Description", group_facts.get("pg_desc", "")))),
        group_name=redact(group_name),
        ranks=ranks,
        members=len(ranks) or _int_or(members, 0, _MAX_RANKS),
        seq=_int_or(args.get("Seq"), -1),
        size=_message_bytes(args),
        peer=_peer_rank(args),
        receives="Src Rank" in args or (span is not None and span["name"] == "recv"),
        sent=_bytes_sent(args, len(ranks)) if collective == "all_to_all" else (),
    )


def _peer_rank(args: Mapping[str, Any]) -> int:
    """The global rank that a send goes to or that a receive comes from; -1 if it is not recorded."""
    return _int_or(args.get("Dst Rank", args.get("Src Rank")), -1, _MAX_RANKS)


def _int_or(value: Any, default: int, below: int = _MAX_VALUE) -> int:
    """The value if it is an integer from 0 to below `below`, else the default. A bool is not an integer here."""
    return value if type(value) is int and 0 <= value < below else default


def _decode_integers(value: Any) -> tuple[int, ...]:
    """Decodes a list of ranks or of shares, `[0, 1]` or its text form; empty for anything else, also for a shortened
    text (`[0, 1, ...]`)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if isinstance(value, list) and value and all(_int_or(rank, -1, _MAX_RANKS) >= 0 for rank in value):
        return tuple(value)
    return ()


def _bytes_sent(args: Mapping[str, Any], members: int) -> tuple[int, ...]:
    """Bytes that each member receives of this rank's input in an all-to-all. Empty if the shares, the number of
    elements or the dtype are not recorded or not known.

    torch records the shares along the first dimension (`In split size`): `[]` if they are equal; a long list is cut.
    """
    recorded = args.get("In split size")
    shares = (1,) * members if recorded in ("[]", []) else _decode_integers(recorded)
    element_bytes = _BYTES_OF_DTYPE.get(str(args.get("dtype", "")).lower(), 0)
    elements = _int_or(args.get("In msg nelems"), -1)
    total_bytes, total_share = element_bytes * elements, sum(shares)
    if not element_bytes or elements < 0 or total_bytes >= _MAX_VALUE or not shares or len(shares) != members:
        return ()
    # A total of 0: a rank of a mixture of experts that has no tokens sends nothing.
    return tuple(total_bytes * share // total_share if total_share else 0 for share in shares)


def _message_bytes(args: Mapping[str, Any]) -> int:
    """Bytes of the larger of input and output, from their numbers of elements; else of all inputs, from their shapes. 0
    if unknown or larger than a column holds."""
    if "In msg nelems" in args:
        width = _BYTES_OF_DTYPE.get(str(args.get("dtype", "")).lower(), 0)
        return _int_or(width * max(_int_or(args.get(f"{side} msg nelems"), 0) for side in ("In", "Out")), 0)
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return 0
    total = 0
    for shape, kind in zip(dims, kinds):
        if isinstance(shape, list) and all(_int_or(length, -1) >= 0 for length in shape):
            elements = 1
            for length in shape:
                elements = min(elements * length, _MAX_VALUE)  # bounded: a shape may have any number of dims
            total += elements * _BYTES_OF_DTYPE.get(str(kind).lower().removeprefix("c10::"), 0)
    return _int_or(total, 0)
