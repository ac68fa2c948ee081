"""Finish a run whose ranks have ended: read what they measured, book their traces, and store the run.

To book a trace is to compute the ledgers of its steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainyard.launch.supervisor import event_log
from trainyard.ledger import Ledger
from trainyard.plugins import Vendor
from trainyard.record import Run
from trainyard.redact import redact
from trainyard.run.local.rank_facts import read_facts
from trainyard.run.record import goodput, provenance, run_claims
from trainyard.run.record.load_meter import LoadMeter
from trainyard.run.session import Session
from trainyard.store.run_folder import rank_files, read_samples
from trainyard.units import counted, show_time


def read_measurements(run: Run, folder: Path, vendors: Mapping[str, Vendor]) -> Run:
    """Return `run` with the data that the ranks left in its folder: samples, facts and the claims derived from them,
    names of traces, incidents and goodput.

    `vendors`: by name. Facts and traces of ranks that the last attempt did not have are ignored; samples are kept.
    """
    events = event_log.read(folder)
    ranks = goodput.last_ranks(events, run.job)
    facts = [fact for fact in read_facts(folder) if not ranks or fact.rank < ranks]
    samples = tuple(read_samples(folder))
    traces = [f"profiles/{path.name}" for path in rank_files(folder / "profiles", ".profile", ranks=ranks)] or [
        f"traces/{path.name}" for path in rank_files(folder / "traces", ".json", ".json.gz", ranks=ranks)
    ]
    extended_provenance = provenance.with_facts(run.provenance, facts)
    measured_run = replace(
        run,
        samples=samples,
        trace=tuple(traces),
        provenance=extended_provenance,
        incidents=goodput.incidents(events, samples),
        goodput=goodput.goodput(events, samples),
    )
    return replace(measured_run, claims=run_claims.derive_claims(measured_run, facts, vendors))


def add_load(run: Run, load_meter: LoadMeter) -> Run:
    """Return `run` with the load of the machine since the meter was started."""
    return replace(run, provenance=replace(run.provenance, load=load_meter.finish()))


def book_traces(run: Run, folder: Path, session: Session) -> Run:
    """Book the run's traces and store it as complete with its ledgers; return the stored run.

    `session.book` computes the ledgers. If it fails, the run is stored as failed, and the error raised again.
    """
    ledgers: Sequence[Ledger] = ()
    if run.trace:
        session.store.finish(run)  # incomplete, in case booking is interrupted
        start = time.perf_counter_ns()
        try:
            ledgers = session.book([folder / name for name in run.trace])
        except Exception as error:  # not even a bug of ours may lose the measurements
            session.store.finish(mark_failed(run, f"its traces could not be booked: {error}"))
            raise
        session.say(f"booked {counted(len(run.trace), 'trace')} in {show_time(time.perf_counter_ns() - start)}")
    return session.store.finish(replace(run, state="complete", ledgers=tuple(ledgers)))


def mark_failed(run: Run, reason: str) -> Run:
    """Return `run` in the state `failed`, with the reason without secrets."""
    return replace(run, state="failed", failure=redact(reason))
