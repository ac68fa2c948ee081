"""`trainyard gate bisect GOOD BAD -- TARGET`: find the commit that caused a slowdown."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

from trainyard.cli.gate.gate_options import ALPHA, MARGIN, ONE_METRIC, PAIRS, TOGETHER


@click.command()
@click.argument("good")
@click.argument("bad")
@click.argument("target", metavar="-- JOB.toml | COMMAND...", nargs=-1, required=True)
@PAIRS
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@click.option("--json", "as_json", is_flag=True, help="Print the steps and the result as JSON.")
@click.pass_context
def command(
    context: click.Context,
    good: str,
    bad: str,
    target: tuple[str, ...],
    pairs: int,
    metric: str,
    margin: float,
    alpha: float,
    together: bool,
    as_json: bool,
) -> None:
    """Find the commit between GOOD and BAD (first parents) that slowed down JOB.toml or your own script.

    Each step compares a commit with GOOD in interleaved runs, like `trainyard gate run`; --alpha bounds the error rate
    of all steps together. A commit without a clear verdict is skipped and remains a suspect.

    Exit codes: 0 one commit was found, or BAD is not slower; 3 several suspects are left, or the result is unclear.
    """
    from trainyard.cli.gate.interleaved_runs import absolute_target
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.compare.gate.bisect_commits import Bisected, BisectStep, bisect
    from trainyard.compare.gate.gate_result import GateRequest, verdicts
    from trainyard.compare.gate.interleave import take_turns
    from trainyard.compare.gate.verdict import Rule, Verdict
    from trainyard.report.gate.bisect_terminal import print_bisected
    from trainyard.report.gate.sentences import LABELS, decided
    from trainyard.run.revisions.in_revision import run_pair
    from trainyard.run.revisions.worktree import between, checkout, known_revision, subject
    from trainyard.store.store import Store

    store, here, job = Store(say=say), Path.cwd(), absolute_target(target, together=together)
    first, last = known_revision(here, good), known_revision(here, bad)
    commits = between(here, first, last)

    def judged(commit: str, rule: Rule) -> Verdict:
        request = GateRequest((metric,), rule)
        with checkout(here, first) as base, checkout(here, commit) as head:
            folders = {"base": base, "head": head}
            ran = take_turns(
                lambda order: run_pair([folders[side] for side in order], job, store, together=together),
                request,
                SystemRandom(),
                lambda *_: None,
            )
        return verdicts(ran, request)[0]

    def report_step(step: BisectStep) -> None:
        verdict = f"{LABELS[step.verdict.says]}: {decided(step.verdict)}"
        say(f"{step.commit[:10]} {subject(here, step.commit)}: {verdict}")

    rule = Rule(alpha=alpha, margin=margin, cap=pairs)
    result: Bisected = bisect(first, commits, judged, rule, report_step)
    if as_json:
        print_json(result)
    else:
        subjects = {
            commit: subject(here, commit) for commit in (*result.suspects, *(step.commit for step in result.steps))
        }
        print_bisected(result, subjects, console())
    context.exit(result.exit_code)
