"""`trainyard gate bisect GOOD BAD -- WHAT`: the commit that made it slower."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

from trainyard.cli.gate.gate_options import ALPHA, MARGIN, ONE_METRIC, PAIRS, TOGETHER


@click.command()
@click.argument("good")
@click.argument("bad")
@click.argument("what", metavar="-- JOB.toml | COMMAND...", nargs=-1, required=True)
@PAIRS
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@click.option("--json", "as_json", is_flag=True, help="Print what was asked and found as JSON.")
@click.pass_context
def command(
    context: click.Context,
    good: str,
    bad: str,
    what: tuple[str, ...],
    pairs: int,
    metric: str,
    margin: float,
    alpha: float,
    together: bool,
    as_json: bool,
) -> None:
    """Find the commit between GOOD and BAD (first parents) that made JOB.toml or your own script slower.

    At each step a commit and GOOD take turns, as `trainyard gate run` lets them, until it is known; all steps together
    err as seldom as --alpha says. What cannot be told is passed over, and stays a suspect.

    Exit codes: 0 one commit was found, or BAD is not slower; 3 several are left, or it cannot be told.
    """
    from trainyard.cli.gate.interleaved_runs import what_to_run
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

    store, here, job = Store(say=say), Path.cwd(), what_to_run(what, together=together)
    first, last = known_revision(here, good), known_revision(here, bad)
    commits = between(here, first, last)

    def judged(commit: str, rule: Rule) -> Verdict:
        asked = GateRequest((metric,), rule)
        with checkout(here, first) as base, checkout(here, commit) as head:
            folders = {"base": base, "head": head}
            ran = take_turns(
                lambda order: run_pair([folders[side] for side in order], job, store, together=together),
                asked,
                SystemRandom(),
                lambda *_: None,
            )
        return verdicts(ran, asked)[0]

    def told(step: BisectStep) -> None:
        says = f"{LABELS[step.verdict.says]}: {decided(step.verdict)}"
        say(f"{step.commit[:10]} {subject(here, step.commit)}: {says}")

    rule = Rule(alpha=alpha, margin=margin, cap=pairs)
    found: Bisected = bisect(first, commits, judged, rule, told)
    if as_json:
        print_json(found)
    else:
        subjects = {commit: subject(here, commit) for commit in (*found.suspects, *(one.commit for one in found.steps))}
        print_bisected(found, subjects, console())
    context.exit(found.exit_code)
