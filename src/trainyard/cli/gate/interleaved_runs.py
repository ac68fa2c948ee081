"""Run two revisions interleaved on this machine and compare them, for `gate run` and the pytest fixture."""

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


def absolute_target(words: Sequence[str], *, together: bool) -> list[str]:
    """Make the path of a job file absolute, so that it is found from any folder; a command is returned as it is, since
    each worktree has its own script. Raises `BadInput` for a bad job file, or one with several ranks if `together`."""
    if len(words) > 1 or not words[0].endswith(".toml"):
        return [*words]
    name = regular(words[0])
    job = load(Path(name))
    if together and job.layout.ranks > 1:
        raise BadInput(
            f"{words[0]} has {job.layout.ranks} ranks, but --together runs both sides on one core.",
            "Use a job with one rank, or omit --together.",
        )
    return [str(Path(name).absolute())]


def run_interleaved(
    target: Sequence[str],
    base: str,
    head: str | None,
    request: GateRequest,
    say: Callable[[str], None],
    across: tuple[str, ...] = (),
    together: bool = False,
) -> GateResult:
    """Run `target`, a job file or a command, at both revisions in turns until there is a verdict.

    `head`: None for the working tree. `together`: as in `in_revision.run_pair`."""
    store, here, job = Store(say=say), Path.cwd(), absolute_target(target, together=together)
    shas = known_revision(here, base), known_revision(here, head) if head else ""
    with ExitStack() as trees:
        folders = {
            "base": trees.enter_context(checkout(here, shas[0])),
            "head": trees.enter_context(checkout(here, shas[1])) if head else here,
        }
        ran = take_turns(
            lambda order: in_revision.run_pair([folders[side] for side in order], job, store, together=together),
            request,
            SystemRandom(),
            lambda count, verdicts: say(f"pair {count}/{request.rule.cap}: {'; '.join(map(decided, verdicts))}"),
            across,
        )
    named = f"{head} ({shas[1][:10]})" if head else "the working tree"
    return gate(f"{base} ({shas[0][:10]})", named, PairedRuns(tuple(ran), ()), request, profile, ignored=("code",))
