"""Joins the parts of a job into one run: its samples, facts and profiles, booked once over all ranks.

The run has an id that follows from the job's id, so that every node would give it the same. Ranks without a part are
recorded as missing; parts that arrive later are added by joining again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as replace_field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from trainyard import plugins
from trainyard.errors import BadFile, BadInput, FileTooLarge
from trainyard.formats.regular_files import open_regular, read_bytes
from trainyard.job import SCRIPT
from trainyard.record import NodeShare, Run
from trainyard.run.parts import archive
from trainyard.run.parts.node_part import record_of, shares
from trainyard.run.parts.part import FILE, Part, joined_run_id, read_part, write_part
from trainyard.run.record.finish_run import book_traces, mark_failed, read_measurements
from trainyard.run.script.script_layout import with_layout
from trainyard.run.session import Session
from trainyard.store import run_folder, tags
from trainyard.store.disk_space import writing
from trainyard.store.store import Store
from trainyard.store.unfinished_writes import writer
from trainyard.units import counted, show_ranks, show_time

_MAX_START_DIFFERENCE_S = 600


class Source(NamedTuple):
    """A part and the folder that holds its files. `shown`: the path that the user gave, for messages."""

    part: Part
    folder: Path
    shown: str


def join(parts: Sequence[Path], session: Session, *, absorb: Path | None = None) -> Run:
    """Join parts into one run of the session's store, book it, and return it.

    `parts`: run folders with a `part.json`, or archives of them (`archive.pack`); a joined run counts as a part.
    `absorb`: a part's own run folder in the same store, which the joined run replaces: it gets the part's traces, and
    the part is deleted.

    Raises `BadInput` for parts of different jobs, and for a rank in two of them; `BadFile` for a damaged part; nothing
    is stored then. If the run exists already, it is replaced if all of its ranks are in `parts`; else `BadInput`.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as temporary:
        sources = _distinct(_open(parts, Path(temporary)), session)
        run, job_text = _joined_head(sources)
        _check_replaced(run, session.store)
        with _staging_store(session.store) as staging:
            folder = staging.begin(run, job_text)
            _copy(sources, folder, session)
            measured = read_measurements(run, folder, plugins.load_all("vendors"))
            _check_samples(measured)
            if run.job.workload == SCRIPT:
                measured = with_layout(measured, sources[0].part.world_size)
            if absorb is not None:
                _link_traces(absorb, folder)
            joined = _book(measured, folder, replace_field(session, store=staging), run.failure)
            _move_in(folder, session.store)
    if absorb is not None:
        session.store.delete(absorb.name)
    if session.tag:
        session.store.tag(run.id, session.tag)
    return joined


@contextmanager
def _staging_store(store: Store) -> Iterator[Store]:
    """A hidden store on the same disk, in which a run is made before it replaces another one; removed at the end."""
    root = store.root / f".join-{writer()}"
    try:
        yield Store(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _move_in(folder: Path, store: Store) -> None:
    """Move a run's folder into the store. A run of the same id is replaced, and its tags are kept."""
    target, old = store.runs / folder.name, store.runs / f".gone-{folder.name}-{writer()}"
    with writing(target):
        store.runs.mkdir(parents=True, exist_ok=True)
        if target.exists():
            _keep_tags(target, folder)
            target.rename(old)
        folder.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _keep_tags(source: Path, target: Path) -> None:
    """Add the tags of the run in `source` to the one in `target`."""
    with suppress(BadFile):
        if own := tags.read_tags(source):
            tags.write_tags(target, {**own, **tags.read_tags(target)})


def _open(paths: Sequence[Path], temporary: Path) -> Iterator[Source]:
    """Yield the parts in folders and archives; archives are unpacked to the folder `temporary`. Raises `BadInput` for
    anything else."""
    if not paths:
        raise BadInput("no parts given.", "Pass run folders or archives of parts.")
    for number, path in enumerate(paths):
        if path.is_dir():
            if not (path / FILE).is_file():
                raise BadInput(
                    f"{path}: has no {FILE}, so it is not a part of a run on several nodes.",
                    "Pass the run folders of the nodes, or archives of them.",
                )
            yield Source(read_part(path), path, str(path))
        else:
            into = temporary / str(number)
            yield Source(archive.unpack(_read_archive(path), into, str(path)), into, str(path))


def _read_archive(path: Path) -> bytes:
    """Read an archive of a part. Raises `BadFile`."""
    with open_regular(path) as file:
        data = file.read(archive.MAX_PACKED_BYTES + 1)
    if len(data) > archive.MAX_PACKED_BYTES:
        raise FileTooLarge(f"{path}: more than {archive.MAX_PACKED_BYTES:,} bytes.")
    return data


def _distinct(sources: Iterator[Source], session: Session) -> list[Source]:
    """The parts in order of their ranks, each once. Raises `BadInput` for parts of different jobs and for a rank in two
    different parts."""
    kept: list[Source] = []
    for source in sources:
        part = source.part
        twin = next((other for other in kept if other.part == part), None)
        if twin is not None:
            session.say(f"{source.shown} and {twin.shown} are the same part: it counts once.")
            continue
        for other in kept:
            _check_same_job(other, source)
        kept.append(source)
    return sorted(kept, key=lambda source: source.part.ranks)


def _check_same_job(first: Source, other: Source) -> None:
    """Raise `BadInput` if two parts are not of one job."""
    a, b = first.part, other.part
    if a.job_id != b.job_id:
        raise BadInput(
            f"{first.shown} is a part of job {a.job_id}, and {other.shown} of job {b.job_id}.",
            "Join the parts of one job.",
        )
    if a.world_size != b.world_size:
        raise BadInput(
            f"{first.shown} is of a job of {a.world_size:,} ranks, and {other.shown} of one of {b.world_size:,}, "
            f"although both are called {a.job_id}.",
            "Two jobs used the same name or port: join the parts of one of them.",
        )
    if common := sorted(set(a.ranks) & set(b.ranks)):
        raise BadInput(
            f"{first.shown} (run {a.run or '?'}, node {a.node}) and {other.shown} (run {b.run or '?'}, node {b.node}) "
            f"both have {show_ranks(common)} of job {a.job_id}.",
            "Pass each part once: a joined run has the parts that were added to it. If the parts are of two jobs with "
            "the same name or port, pass those of one job.",
        )


def _joined_head(sources: Sequence[Source]) -> tuple[Run, str]:
    """(the joined run before it is measured, text of its job file). Job and provenance are those of the lowest ranks'
    part that has them. Raises `BadInput` if none does."""
    heads = [(source, run_folder.read_head(source.folder, source.shown)) for source in sources if _has_run(source)]
    if not heads:
        raise BadInput(f"{sources[0].shown}: none of the parts has a run.json.", "Pass the run folders of the nodes.")
    source, head = heads[0]
    parts = [each.part for each in sources]
    failures = [_failure(each.part, run) for each, run in heads if run.state in ("failed", "incomplete")]
    earlier = {share.run: share for _, run in heads for share in run.nodes if not share.missing}
    run = replace(
        head,
        id=joined_run_id(parts[0].job_id),
        started=min(run.started for _, run in heads),
        state="incomplete",
        failure="; ".join(failures),
        samples=(),
        ledgers=(),
        trace=(),
        claims={},
        digest="",
        job_id=parts[0].job_id,
        nodes=_merged_shares(parts, list(earlier.values())),
        part_notes=tuple(_differences(parts)),
    )
    return run, read_bytes(source.folder / "job.toml", f"{source.shown}/job.toml").decode("utf-8", "replace")


def _failure(part: Part, run: Run) -> str:
    """Why a part's run failed, with the node's name; that of a run that was joined before has it already."""
    is_joined = part.run == joined_run_id(part.job_id)
    return run.failure if is_joined else f"{part.node}: {run.failure or run.state}"


def _has_run(source: Source) -> bool:
    return (source.folder / "run.json").is_file() and (source.folder / "job.toml").is_file()


def _merged_shares(parts: list[Part], earlier: list[NodeShare]) -> tuple[NodeShare, ...]:
    """The ranks by node. `earlier`: shares of runs that were joined before, which know each node's version and code."""
    known = {share.ranks: share for share in earlier}
    return tuple(share if share.missing else known.get(share.ranks, share) for share in shares(parts))


def _differences(parts: Sequence[Part]) -> Iterator[str]:
    """A sentence for each way in which the parts differ although they are of one job."""
    first = parts[0]
    for part in parts[1:]:
        if part.trainyard != first.trainyard:
            yield (
                f"Node {part.node} was recorded with trainyard {part.trainyard}, and node {first.node} with "
                f"{first.trainyard}."
            )
        if part.code != first.code:
            yield (
                f"Node {part.node} ran other code than node {first.node}: {_show_code(part)}, not {_show_code(first)}."
            )
        difference_s = _seconds_between(first.started, part.started)
        if difference_s > _MAX_START_DIFFERENCE_S:
            yield (
                f"Nodes {first.node} and {part.node} began {show_time(int(difference_s * 1e9))} apart by their clocks: "
                "the clocks differ, or the parts are of two jobs with one name."
            )


def _show_code(part: Part) -> str:
    changed = " with changes" if part.code.get("dirty") == "yes" else ""
    return f"{part.code.get('sha', 'no git checkout')[:12]}{changed}"


def _seconds_between(time: str, other: str) -> float:
    """Seconds between two times in ISO 8601; 0 if either is not one."""
    try:
        return abs((datetime.fromisoformat(time) - datetime.fromisoformat(other)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _check_replaced(run: Run, store: Store) -> None:
    """Raise `BadInput` if the store has a joined run of this job with ranks that the new one would lack."""
    folder = store.runs / run.id
    if not (folder / FILE).is_file():
        return
    lost = set(read_part(folder).ranks) & set(run.missing_ranks)
    if lost:
        raise BadInput(
            f"run {run.id} of this job exists, with {show_ranks(sorted(lost))}, which none of the parts has.",
            f"Add to it: `trainyard runs join {run.id} PART...`.",
        )


def _copy(sources: Sequence[Source], folder: Path, session: Session) -> None:
    """Copy the files of the parts to the joined run's folder, and write its `part.json`.

    Logs and other files that are not of one rank get the node's name. A trace without a reduced profile is reduced.
    """
    for source in sources:
        for name in archive.file_names(source.folder, source.part.ranks):
            if name in archive.TOP_FILES:
                continue
            subfolder, _, file = name.rpartition("/")
            rank = archive.rank_of(file)
            if subfolder == "traces" and rank is not None:
                profile = folder / "profiles" / f"rank{rank}.profile"
                profile.parent.mkdir(exist_ok=True)
                session.reduce(source.folder / name, profile, record_of(source.part, rank))
                continue
            named = rank is not None or source.part.run == joined_run_id(source.part.job_id)
            target = folder / subfolder / (file if named else f"{_plain(source.part.node)}.{file}")
            with writing(target):
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source.folder / name, target, follow_symlinks=False)
    first = sources[0].part
    merged = replace(
        first,
        ranks=tuple(sorted(rank for source in sources for rank in source.part.ranks)),
        hosts={rank: host for source in sources for rank, host in _hosts(source.part).items()},
        clocks={rank: clock for source in sources for rank, clock in source.part.clocks.items()},
        run=joined_run_id(first.job_id),
    )
    write_part(folder, merged)


def _hosts(part: Part) -> dict[int, str]:
    return {**part.hosts, **{rank: part.hosts.get(rank, part.node) for rank in part.ranks}}


def _plain(node: str) -> str:
    """A node's name with characters of file names only."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in node)[:60]


def _check_samples(run: Run) -> None:
    """Raise `BadFile` if a sample is of a rank that none of the parts has."""
    present = {rank for share in run.nodes if not share.missing for rank in share.ranks}
    if foreign := sorted({sample.rank for sample in run.samples} - present):
        raise BadFile(f"the samples of the parts are of {show_ranks(foreign)}, which none of them has.")


def _link_traces(source: Path, folder: Path) -> None:
    """Link the profiler's files of a part's run folder into the joined run's, which has their reduced profiles."""
    for trace in run_folder.rank_files(source / "traces", ".json", ".json.gz"):
        with writing(folder):
            (folder / "traces" / trace.name).hardlink_to(trace)


def _book(run: Run, folder: Path, session: Session, failure: str) -> Run:
    """Book the joined run and store it: complete, or failed if a part had failed (`failure`)."""
    session.say(
        f"run {run.id}: joined {counted(len({share.run for share in run.nodes if not share.missing}), 'part')}, "
        f"{counted(len({sample.rank for sample in run.samples}), 'rank')}"
    )
    booked = book_traces(replace(run, failure=""), folder, session)
    return session.store.finish(mark_failed(booked, failure)) if failure else booked
