"""Error rates of the gate: `python -m validation.gate` prints, for many kinds of noise and for real series, the
false-alarm rate of the gate and of other rules, its power and the pairs it needs, and how often it names the changed
account.

The order of the runs of a pair is randomised: given the sizes of a series' differences, the gate's error rate is the
fraction of all 2^20 orders that stop it, which is counted exactly. Everything else is drawn from the seed.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import log1p, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.compare.gate import sequential_test
from trainyard.compare.gate.changed_accounts import find_changed_accounts
from trainyard.compare.gate.verdict import Rule, judge
from trainyard.stats.student_t import quantile

Values = npt.NDArray[np.float64]
SEED = 20261122
STEPS = 30
"""Steps of a run."""
BETWEEN, WITHIN, CARRIED = 0.015, 0.02, 0.5
"""Standard deviations between runs and between the steps of a run, and the autocorrelation of steps."""
SERIES, TRIALS = 24, 1000
REAL = Path(__file__).parents[2] / "shared" / "data" / "megatron_loss_and_step_times.jsonl.gz"


def steps(rng: np.random.Generator, runs: Values) -> Values:
    """Logarithms of step times, of shape (runs, STEPS); `runs`: their mean in each run."""
    noise = rng.normal(0, WITHIN, (len(runs), STEPS))
    for at in range(1, STEPS):
        noise[:, at] = CARRIED * noise[:, at - 1] + sqrt(1 - CARRIED**2) * noise[:, at]
    return runs[:, None] + noise


def _carried(rng: np.random.Generator, count: int) -> Values:
    values = rng.normal(0, BETWEEN, count)
    for at in range(1, count):
        values[at] = 0.7 * values[at - 1] + sqrt(1 - 0.49) * values[at]
    return values


KINDS: Mapping[str, Callable[[np.random.Generator, int], Values]] = {
    "independent": lambda rng, count: rng.normal(0, BETWEEN, count),
    "carried over (0.7)": _carried,
    "two modes, 8 % apart": lambda rng, count: rng.normal(0, BETWEEN / 3, count) + 0.08 * rng.integers(0, 2, count),
    "heavy tails (t, 2)": lambda rng, count: BETWEEN * rng.standard_t(2, count),
    "drift of 10 %": lambda rng, count: rng.normal(0, BETWEEN, count) + np.linspace(0, 0.1, count),
}


def real() -> Iterator[Values]:
    """Logarithms of 40 consecutive step times of one run of each job in the public file, if it exists: real noise, used
    in place of that between runs."""
    seen: set[str] = set()
    if not REAL.exists():
        return
    with gzip.open(REAL, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            times = [time for time in (row.get("iteration-time") or {}).get("v", [])[-40:] if time and time > 0]
            if row["path"] not in seen and len(times) == 40:
                seen.add(row["path"])
                yield np.log(np.array(times))


def pooled_says_worse(base: Values, head: Values) -> bool:
    """One-sided Student's t test over all steps, as if they were independent, at 1 %."""
    spread = sqrt((base.var(ddof=1) + head.var(ddof=1)) / base.size)
    return bool((head.mean() - base.mean()) / spread > quantile(0.99, 2 * base.size - 2))


def null(name: str, series: list[Values], rng: np.random.Generator) -> str:
    """A line of false-alarm rates. `series`: logarithms of 40 consecutive runs each."""
    errors: list[float] = []
    threshold = pooled = trials = 0
    for runs in series:
        *_, last = sequential_test.look_after_each(np.abs(runs[1::2] - runs[::2]), Rule().alpha, Rule().max_pairs)
        errors.append(last.alarms)
        for _ in range(50):
            turns = rng.integers(0, 2, 20)
            base, head = runs[np.arange(0, 40, 2) + turns], runs[np.arange(0, 40, 2) + 1 - turns]
            threshold += bool(np.expm1(head[:5].mean() - base[:5].mean()) > 0.05)
            pooled += pooled_says_worse(steps(rng, base[:5]).ravel(), steps(rng, head[:5]).ravel())
            trials += 1
    return (
        f"{name:24} {len(series):6}  {100 * np.mean(errors):6.3f} %  {100 * np.max(errors):6.3f} %  "
        f"{100 * threshold / trials:6.1f} %  {100 * pooled / trials:6.1f} %"
    )


def power(slower: float, rng: np.random.Generator) -> str:
    counts = {"worse": 0, "not worse": 0, "unclear": 0}
    pairs = 0
    for _ in range(TRIALS):
        base, head = (np.median(steps(rng, rng.normal(0, BETWEEN, 20)), axis=1) for _ in range(2))
        verdict = judge("step_time", (head + log1p(slower) - base).tolist(), Rule())
        counts[verdict.outcome] += 1
        pairs += verdict.pairs
    shares = "  ".join(f"{100 * count / TRIALS:6.1f} %" for count in counts.values())
    return f"{100 * slower:5.1f} %    {shares}  {pairs / TRIALS:6.2f}"


SHARES = np.array([30, 20, 12, 10, 8, 6, 4, 3, 2, 2, 2, 1]) / 100
PLANTED = 9


def accounts(rng: np.random.Generator, more: float) -> dict[str, float]:
    """Twelve accounts of a run's mean step of 0.1 s; the account PLANTED (2 %) takes the fraction `more` longer."""
    times = SHARES * np.exp(rng.normal(0, BETWEEN))
    times = times * np.exp(steps(rng, np.zeros(len(SHARES)))).mean(axis=1)
    times[PLANTED] *= 1 + more
    return {f"account {at}": 1e8 * time for at, time in enumerate(times)}


def culprits(more: float, rng: np.random.Generator) -> str:
    right = wrong = 0
    for _ in range(TRIALS):
        reasons = find_changed_accounts([(accounts(rng, 0.0), accounts(rng, more)) for _ in range(5)], 0.01)
        moved = {account.account for account in reasons.accounts if account.verdict in ("worse", "better")}
        right += f"account {PLANTED}" in moved
        wrong += bool(moved - ({f"account {PLANTED}"} if more else set()))
    return f"{100 * more * SHARES[PLANTED]:6.1f} %   {100 * right / TRIALS:6.1f} %   {100 * wrong / TRIALS:6.1f} %"


def main() -> None:
    rng = np.random.default_rng(SEED)
    out = sys.stdout
    print(f"False alarms of 1 %: seed {SEED}, {SERIES} series of 40 runs each", file=out)
    print("noise                    series      gate       most  5 % on 5   pooled t", file=out)
    for name, draw in KINDS.items():
        print(null(name, [draw(rng, 40) for _ in range(SERIES)], rng), file=out)
    if series := list(islice(real(), 2 * SERIES)):
        print(null("real steps", series, rng), file=out)
    print(f"\nA slowdown, {TRIALS} cases each: runs vary by {BETWEEN:.1%}, steps by {WITHIN:.0%}", file=out)
    print("slowdown     worse  not worse   unclear   pairs", file=out)
    for slower in (0.0, 0.015, 0.03, 0.05):
        print(power(slower, rng), file=out)
    print(f"\nThe changed account, 5 pairs, {TRIALS} cases each: one of twelve accounts, 2 % of the step", file=out)
    print("slower     named     another", file=out)
    for more in (0.0, 0.1):
        print(culprits(more, rng), file=out)


if __name__ == "__main__":
    main()
