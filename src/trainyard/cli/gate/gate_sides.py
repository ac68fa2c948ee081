"""What a side of the gate is named by: runs one by one, or a revision, which stands for all of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainyard.cli.support.output import say
from trainyard.errors import BadFile, BadInput, UnknownName
from trainyard.record import Run
from trainyard.run.revisions.worktree import ancestors, revision
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

_TOLD = 2


def told(names: Sequence[str]) -> str:
    """A side in a few words."""
    return " ".join(names) if len(names) <= _TOLD else f"{len(names)} runs ({names[0]} …)"


def side(store: Store, names: Sequence[str], job: str, *, or_before: bool = False) -> list[Run]:
    """The runs that `names` name: each a run, or a revision. Of a revision those that ended well, of a tree without
    changes, and of `job` where that is said. `or_before`: of a revision without runs those of the newest commit before
    it that has some, as a branch moves on while its stored runs do not."""
    found: dict[str, Run] = {}
    for name in names:
        try:
            runs = [store.load(name)]
        except UnknownName as error:
            runs = _of_revision(store, name, job, error, or_before)
        found |= {run.id: run for run in runs}
    return list(found.values())


def _complete(store: Store, rows: Sequence[RunRow]) -> Iterator[Run]:
    """The runs of the rows, without those that turn out to be damaged, which is reported."""
    for row in rows:
        try:
            run = store.load(row.id)
        except BadFile as error:
            say(f"passed over: {error}")
        else:
            if run.state == "complete":
                yield run


def _of_revision(store: Store, name: str, job: str, error: UnknownName, or_before: bool) -> list[Run]:
    sha = revision(Path.cwd(), name)
    if not sha:
        raise UnknownName(f"{error.says[:-1]}, nor a revision of that name here.", error.next_step)
    rows = [row for row in store.rows() if row.state == "complete" and job in ("", row.job)]
    by_commit: dict[str, list[Run]] = {}
    unclean = 0
    for run in _complete(store, rows):
        if run.provenance.code.get("dirty") == "no":
            by_commit.setdefault(run.provenance.code.get("sha", ""), []).append(run)
        else:
            unclean += run.provenance.code.get("sha") == sha
    line = ancestors(Path.cwd(), sha) if or_before else [sha]
    of = next((commit for commit in line if commit in by_commit), sha)
    runs = by_commit.get(of, [])
    jobs = sorted({run.job.name for run in runs})
    if not runs:
        of_job = f" of job {job}" if job else ""
        which = "of which and of whose last ancestors" if or_before else "of which"
        left_out = f" {unclean} are of a tree with changes or files that git does not know." if unclean else ""
        raise UnknownName(
            f"{name} is {sha[:10]}, {which} no run{of_job} is stored.{left_out}", "`trainyard gate run` makes some."
        )
    if len(jobs) > 1:
        raise BadInput(f"{name} has runs of {', '.join(jobs)}.", "Say which: --job NAME.")
    newer = f", {line.index(of)} commits before it: none later has runs" if of != sha else ""
    say(f"{name}: {len(runs)} runs of {of[:10]}{newer}")
    return runs
