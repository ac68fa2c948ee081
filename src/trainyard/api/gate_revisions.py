"""`gate_run` and `gate_bisect`: run revisions of the repository interleaved on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom

from trainyard.api.gate_stored_runs import ignore_message, profile_reader
from trainyard.api.gate_target import Target, read_target, show_target
from trainyard.compare.gate.bisect_commits import BisectStep, bisect
from trainyard.compare.gate.gate_result import GateRequest, gate, judge_metrics
from trainyard.compare.gate.interleave import interleave_runs
from trainyard.compare.gate.pairs import PairedRuns
from trainyard.compare.gate.verdict import ALPHA, MARGIN, MAX_PAIRS, Rule, Verdict
from trainyard.errors import BadInput
from trainyard.report.gate.gate_report import BisectReport, GateReport, report_bisection, report_gate
from trainyard.report.gate.sentences import LABELS, describe_verdict
from trainyard.report.view.next_step import NextStep
from trainyard.run.revisions import in_revision
from trainyard.run.revisions.in_revision import RevisionRun
from trainyard.run.revisions.worktree import between, checkout, known_revision, subject
from trainyard.store.measurement_warnings import loaded_runs_caveats
from trainyard.store.store import Store


def gate_run(
    target: Target,
    *,
    base: str,
    head: str | None = None,
    base_job: str | os.PathLike[str] | None = None,
    pairs: int = MAX_PAIRS,
    metrics: Sequence[str] = ("step_time",),
    margin: float = MARGIN,
    alpha: float = ALPHA,
    across: Sequence[str] = (),
    together: bool = False,
    say: Callable[[str], None] = ignore_message,
) -> GateReport:
    """Runs a job or script with the code of two revisions, in randomised, interleaved pairs, until there is a verdict.

    `target`: a job file, or the words of a command. `base`, `head`: revisions of the repository in the working
    directory; `head` defaults to the working tree. `base_job`: the job file of the base, if that revision reads other
    keys than `target` has. `pairs`: the largest number of pairs. `together`: run both sides at once on one core.
    The other options are those of `gate`.

    ```python
    result = api.gate_run("job.toml", base="main", margin=0.05, say=print)
    assert result.verdict != "worse", result.headline
    ```

    Raises `UnknownRevision`, `BadJob` for a job file that a revision refuses, `CommandFailed` if a run fails.
    """
    store, working_tree = Store(say=say), Path.cwd()
    commands = {"head": read_target(target, together=together)}
    commands["base"] = commands["head"] if base_job is None else _read_base_job(target, base_job, together)
    request = GateRequest(tuple(metrics), Rule(alpha=alpha, margin=margin, max_pairs=pairs))
    base_sha, head_sha = known_revision(working_tree, base), known_revision(working_tree, head) if head else ""
    with ExitStack() as checkouts:
        folders = {
            "base": checkouts.enter_context(checkout(working_tree, base_sha)),
            "head": checkouts.enter_context(checkout(working_tree, head_sha)) if head else working_tree,
        }
        # `order`: "base" and "head" in the order in which a pair runs them.
        measured_pairs = interleave_runs(
            lambda order: in_revision.run_pair(
                [RevisionRun(folders[side], commands[side]) for side in order], store, together=together
            ),
            request,
            SystemRandom(),
            lambda count, verdicts: say(f"pair {count}/{pairs}: {'; '.join(map(describe_verdict, verdicts))}"),
            tuple(across),
        )
    head_name = f"{head} ({head_sha[:10]})" if head else "the working tree"
    result = gate(
        f"{base} ({base_sha[:10]})",
        head_name,
        PairedRuns(pairs=tuple(measured_pairs), caveats=tuple(loaded_runs_caveats(*zip(*measured_pairs)))),
        request,
        profile_reader(store, say),
        ignored=("code",),
    )
    return report_gate(result, _suggest(result.outcome, target, base, head))


def _read_base_job(target: Target, base_job: str | os.PathLike[str], together: bool) -> list[str]:
    """The words that run the base's job file: its absolute path. The file is not checked here, because the base's own
    code reads it. `together`: as in `gate_run`. Raises `BadInput` if `target` is a command or there is no such file."""
    path = Path(base_job)
    if len(read_target(target, together=together)) != 1:
        raise BadInput("--base-job is for a job file, but a command was given.", "Omit --base-job.")
    if not path.is_file():
        raise BadInput(f"--base-job {path}: there is no such file.", "Pass a job file that the base reads.")
    return [str(path.absolute())]


def _suggest(outcome: str, target: Target, base: str, head: str | None) -> tuple[NextStep, ...]:
    """The command that locates the commit of a slowdown, if `outcome` is worse."""
    if outcome != "worse":
        return ()
    command = f"trainyard gate bisect {base} {head or 'HEAD'} {show_target(target)}"
    return (NextStep(command=command, purpose="the commit that caused it"),)


def gate_bisect(
    target: Target,
    *,
    good: str,
    bad: str,
    pairs: int = MAX_PAIRS,
    metric: str = "step_time",
    margin: float = MARGIN,
    alpha: float = ALPHA,
    together: bool = False,
    say: Callable[[str], None] = ignore_message,
) -> BisectReport:
    """Finds the commit between two revisions (first parents) that slowed down a job or script.

    Each step compares a commit with `good` in randomised, interleaved pairs. `alpha`: the error rate of all steps
    together. The other options are those of `gate_run`. A commit without a clear verdict remains a suspect.

    ```python
    result = api.gate_bisect(["python", "train.py"], good="v1.2", bad="main")
    print(result.headline, result.suspects)
    ```

    Raises what `gate_run` does.
    """
    store, working_tree, command = Store(say=say), Path.cwd(), read_target(target, together=together)
    rule = Rule(alpha=alpha, margin=margin, max_pairs=pairs)
    first, last = known_revision(working_tree, good), known_revision(working_tree, bad)
    commits = between(working_tree, first, last)

    def judge_commit(commit: str, rule: Rule) -> Verdict:
        """The verdict on `commit` against the first revision, from pairs of runs in checkouts of both."""
        request = GateRequest((metric,), rule)
        with checkout(working_tree, first) as base, checkout(working_tree, commit) as head:
            folders = {"base": base, "head": head}
            measured_pairs = interleave_runs(
                lambda order: in_revision.run_pair(
                    [RevisionRun(folders[side], command) for side in order], store, together=together
                ),
                request,
                SystemRandom(),
                lambda *_: None,
            )
        return judge_metrics(measured_pairs, request)[0]

    def report_step(step: BisectStep) -> None:
        """Prints the verdict on a commit."""
        verdict = f"{LABELS[step.verdict.outcome]}: {describe_verdict(step.verdict)}"
        say(f"{step.commit[:10]} {subject(working_tree, step.commit)}: {verdict}")

    result = bisect(first, commits, judge_commit, rule, report_step)
    named_commits = {*result.suspects, *(step.commit for step in result.steps)}
    return report_bisection(
        result, {commit: subject(working_tree, commit) for commit in commits if commit in named_commits}
    )
