"""`gate_self_check`: the noise of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

from trainyard.api.gate_stored_runs import ignore_message
from trainyard.api.gate_target import Target, read_target
from trainyard.compare.gate.machine_noise import measure_noise
from trainyard.compare.gate.pairs import Pair
from trainyard.compare.gate.verdict import ALPHA, MARGIN, Rule
from trainyard.report.gate.gate_report import SelfCheckReport, report_noise
from trainyard.run.revisions import in_revision
from trainyard.run.revisions.in_revision import RevisionRun
from trainyard.store.store import Store


def gate_self_check(
    target: Target,
    *,
    pairs: int = 8,
    metric: str = "step_time",
    margin: float = MARGIN,
    alpha: float = ALPHA,
    together: bool = False,
    say: Callable[[str], None] = ignore_message,
) -> SelfCheckReport:
    """Measures the noise of this machine by running a job or script against itself.

    The result has the variation of the metric and its sources, the slowdowns that can be detected with it, and the
    false alarms of a fixed threshold. The options are those of `gate_run`; all `pairs` are run.

    ```python
    noise = api.gate_self_check("job.toml", pairs=5)
    print(noise.between_runs, noise.smallest_detected)
    ```

    Raises `BadInput` for fewer than two pairs or a metric that the runs lack, `CommandFailed` if a run fails.
    """
    store, rng = Store(say=say), SystemRandom()
    run, rule = RevisionRun(Path.cwd(), read_target(target, together=together)), Rule(alpha=alpha, margin=margin)
    results: list[Pair] = []
    for index in range(pairs):
        # Both sides are the same, so which run counts as base and which as head is chosen at random.
        runs = in_revision.run_pair([run, run], store, together=together)
        rng.shuffle(runs)
        results.append(Pair(*runs))
        say(f"pair {index + 1}/{pairs}")
    return report_noise(measure_noise(results, metric, rule), rule)
