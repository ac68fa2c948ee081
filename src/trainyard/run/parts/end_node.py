"""The end of a job of several nodes on one of them: store its part, and send it, or collect and join all parts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from trainyard.errors import TrainyardError
from trainyard.record import Run
from trainyard.run.parts import network
from trainyard.run.parts.collect import receive_parts, send_part, timeout_s
from trainyard.run.parts.join import join
from trainyard.run.parts.node_part import as_part, reduce_traces
from trainyard.run.parts.part import Part, joined_run_id, write_part
from trainyard.run.parts.rank_record import RankRecord
from trainyard.run.record.finish_run import book_traces, mark_failed
from trainyard.run.session import Session
from trainyard.store.run_folder import rank_files
from trainyard.units import show_ranks

_AFTER_FAILURE_S = 20.0
"""Seconds for which the parts of other nodes are waited for, at most, if the command failed on this one."""


class NodeRun(NamedTuple):
    """A node's run whose command has ended. `records`: of its ranks; `failure`: why the command failed, empty if it did
    not."""

    run: Run
    part: Part
    records: list[RankRecord]
    folder: Path
    failure: str = ""


def end_node(node: NodeRun, session: Session, receiver: network.Receiver) -> Run:
    """Store the node's part and bring the parts together; return the joined run, or the part if another node joins.

    The node with rank 0 waits for the other parts and joins what arrives; the others send theirs. If that fails, the
    part is booked alone and keeps the list of the ranks that it lacks; the command that joins the parts is printed.
    """
    reduce_traces(node.folder, node.records, session.reduce, session.say)
    part_run = _store_part(node, session)
    try:
        if 0 in node.part.ranks:
            return _join_all(node, session, receiver)
        collector = next((record.collector for record in node.records if record.collector), "")
        if session.collect or collector:
            send_part(node.folder, node.part, session.collect, collector, session.say)
            session.say(f"run {joined_run_id(node.part.job_id)} of all nodes is stored on the node of rank 0")
            return part_run
        session.say("the part cannot be sent: the ranks have no process group, and --collect is not given")
    except TrainyardError as error:
        session.say(f"the parts could not be brought together: {error}")
    return _keep_alone(node, part_run, session)


def _store_part(node: NodeRun, session: Session) -> Run:
    """Store the node's run without ledgers, as complete or failed, with its `part.json`; return it."""
    write_part(node.folder, node.part)
    profiles = rank_files(node.folder / "profiles", ".profile")
    run = as_part(node.run, node.part)
    if profiles:
        run = replace(run, trace=tuple(f"profiles/{path.name}" for path in profiles))
    return session.store.finish(mark_failed(run, node.failure) if node.failure else replace(run, state="complete"))


def _join_all(node: NodeRun, session: Session, receiver: network.Receiver) -> Run:
    """Wait for the parts of the other nodes, join what arrived with this node's, and return the joined run."""
    with tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as temporary:
        # After a failure, nodes that are gone are not waited for as long.
        limit_s = min(timeout_s(), _AFTER_FAILURE_S) if node.failure else timeout_s()
        arrived = receive_parts(node.part, session.collect, receiver, Path(temporary), session.say, limit_s)
        joined = join([node.folder, *arrived], session, absorb=node.folder)
    if missing := joined.missing_ranks:
        session.say(
            f"run {joined.id} lacks {show_ranks(missing)}: copy their part here and add it with "
            f"`trainyard runs join {joined.id} PART`"
        )
    return joined


def _keep_alone(node: NodeRun, run: Run, session: Session) -> Run:
    """Book the part alone, and print how it is joined later; return its run."""
    session.say(
        f"this node's part, {show_ranks(node.part.ranks)} of {node.part.world_size:,}, is in {node.folder}; "
        f"join the parts of all nodes with `trainyard runs join {node.folder} PART...`"
    )
    if node.failure:
        return run
    return book_traces(run, node.folder, session)
