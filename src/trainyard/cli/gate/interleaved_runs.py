"""Two revisions in turns on this machine, as a command or a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom

from trainyard.cli.gate.stored_traces import profile
from trainyard.cli.support.pipes import regular
from trainyard.compare.gate.gate_result import GateRequest, GateResult, gate
from trainyard.compare.gate.interleave import take_turns
from trainyard.compare.gate.pairs import PairedRuns
from trainyard.errors import BadInput
from trainyard.job_file import load
from trainyard.report.gate.sentences import decided
from trainyard.run.revisions import in_revision
from trainyard.run.revisions.worktree import checkout, known_revision
from trainyard.store.store import Store


def what_to_run(words: Sequence[str], *, together: bool) -> list[str]:
    """A job file is found from any folder; of a command each folder has its own. Raises `BadInput` for a job file that
    is none, or is of more ranks than one core can hold."""
    if len(words) > 1 or not words[0].endswith(".toml"):
        return [*words]
    name = regular(words[0])
    job = load(Path(name))
    if together and job.layout.ranks > 1:
        raise BadInput(
            f"{words[0]} is of {job.layout.ranks} ranks, and --together keeps both sides on one core.",
            "Give a job of one rank, or let them take turns: without --together.",
        )
    return [str(Path(name).absolute())]


def made(
    what: Sequence[str],
    base: str,
    head: str | None,
    asked: GateRequest,
    say: Callable[[str], None],
    across: tuple[str, ...] = (),
    together: bool = False,
) -> GateResult:
    """`what`: a job file, or a command. `head`: None: the folder as it is. `together`: as `elsewhere.run_pair` does."""
    store, here, job = Store(say=say), Path.cwd(), what_to_run(what, together=together)
    shas = known_revision(here, base), known_revision(here, head) if head else ""
    with ExitStack() as trees:
        folders = {
            "base": trees.enter_context(checkout(here, shas[0])),
            "head": trees.enter_context(checkout(here, shas[1])) if head else here,
        }
        ran = take_turns(
            lambda order: in_revision.run_pair([folders[side] for side in order], job, store, together=together),
            asked,
            SystemRandom(),
            lambda many, verdicts: say(f"pair {many}/{asked.rule.cap}: {'; '.join(map(decided, verdicts))}"),
            across,
        )
    named = f"{head} ({shas[1][:10]})" if head else "the working tree"
    return gate(f"{base} ({shas[0][:10]})", named, PairedRuns(tuple(ran), ()), asked, profile, ignored=("code",))
