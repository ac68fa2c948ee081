"""The sides of a gate: individual runs, or a revision, which stands for all its stored runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainyard import units
from trainyard.errors import BadFile, BadInput, UnknownName
from trainyard.record import Run
from trainyard.run.revisions.worktree import ancestors, revision
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

_MAX_NAMES = 2
"""Runs of a side that its name lists."""


def name_side(names: Sequence[str]) -> str:
    """A short name of a side."""
    return " ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} runs (from {names[0]})"


def load_side(
    store: Store, names: Sequence[str], job: str, *, or_before: bool = False, say: Callable[[str], None]
) -> list[Run]:
    """Load the runs of a side; each name is a run or a revision.

    For a revision: its complete runs from a clean tree, of `job` if given. `or_before`: if the revision has no runs,
    use those of its newest ancestor that has some, since a branch may be ahead of its stored runs. `say`: called with
    the runs of a revision, and with those left out."""
    runs_by_id: dict[str, Run] = {}
    for name in names:
        try:
            runs = [store.load(name)]
        except UnknownName as error:
            runs = _load_revision(store, name, job, error, or_before, say)
        runs_by_id |= {run.id: run for run in runs}
    return list(runs_by_id.values())


def load_complete(store: Store, rows: Sequence[RunRow], say: Callable[[str], None]) -> Iterator[Run]:
    """Load the complete runs of the rows; damaged runs are skipped with a message."""
    for row in rows:
        try:
            run = store.load(row.id)
        except BadFile as error:
            say(f"skipped: {error}")
        else:
            if run.state == "complete":
                yield run


def _load_revision(
    store: Store, name: str, job: str, error: UnknownName, or_before: bool, say: Callable[[str], None]
) -> list[Run]:
    """Complete runs of the revision `name`, made from a tree without changes. `error`: that `name` is not a run, for
    the message; `or_before`: else of its last ancestor that has any. Raises `UnknownName` if there are none, `BadInput`
    if they are of several jobs."""
    sha = revision(Path.cwd(), name)
    if not sha:
        raise UnknownName(f"{error.message[:-1]}, nor is there such a revision here.", error.next_step)
    rows = [row for row in store.rows() if row.state == "complete" and job in ("", row.job)]
    by_commit: dict[str, list[Run]] = {}
    unclean_count = 0
    for run in load_complete(store, rows, say):
        if run.provenance.code.get("dirty") == "no":
            by_commit.setdefault(run.provenance.code.get("sha", ""), []).append(run)
        else:
            unclean_count += run.provenance.code.get("sha") == sha
    candidate_commits = ancestors(Path.cwd(), sha) if or_before else [sha]
    commit_with_runs = next((commit for commit in candidate_commits if commit in by_commit), sha)
    runs = by_commit.get(commit_with_runs, [])
    jobs = sorted({run.job.name for run in runs})
    if not runs:
        of_job = f" of job {job}" if job else ""
        which = " or its last ancestors" if or_before else ""
        unclean_runs = units.counted(unclean_count, "of its runs is", "of its runs are")
        left_out = f" {unclean_runs} from a tree with uncommitted changes or files." if unclean_count else ""
        raise UnknownName(
            f"there are no stored runs{of_job} of {name} ({sha[:10]}){which}.{left_out}",
            "`trainyard gate run` makes some.",
        )
    if len(jobs) > 1:
        raise BadInput(f"{name} has runs of several jobs: {', '.join(jobs)}.", "Select one with --job NAME.")
    older = ""
    if commit_with_runs != sha:
        commits_before = units.counted(candidate_commits.index(commit_with_runs), "commit")
        older = f", {commits_before} before it, the newest that has runs"
    say(f"{name}: {units.counted(len(runs), 'run')} of {commit_with_runs[:10]}{older}")
    return runs
