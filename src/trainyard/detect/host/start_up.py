"""start_up: initialisation and the edge of the profile, which are not part of the steady state.

What it does: sums idle time in first uses (device context, libraries, communicators, modules, compilation in the first
step, the first batch) and waits for work from before the profile. No other rule counts this time.
Why it matters: it happens once in a training of hours, but may be most of a short profile.
Example: one cudaFree of 6 s creates the device context, and one cudaLaunchKernel of 3 s loads a library.
Remedy: none for the step; profile after some warm-up steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters, mean_per_step, sum_by_key
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows, claimed_ns
from trainyard.detect.largest_intervals import largest_idle
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_STEP_FRACTION = 0.01
_MAIN_FRACTION = 0.5  # of the step: from this fraction on, the file shows start-up rather than steps
_UNMARKED_COMPILATION_DOUBT = 0.5  # that early compilation in a window without marks is not the first one
_LONE_CALL_DOUBT = 0.05  # a long call of which there are few may be slow for another reason


class StartUp:
    rule = "start_up"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The idle time of start-up in the mean step or window, as information.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        cost_ns = claimed_ns(ledger, ranks, Claimant.START_UP)
        if not matters(ledger, cost_ns, _MIN_STEP_FRACTION):
            return ()
        ns_by_account = _ns_by_account(ledger, ranks or ())
        account = max(ns_by_account, key=lambda account: ns_by_account[account])
        parts = ", ".join(
            f"{account.label.removeprefix('Idle: ')} {units.show_time(ns)}"
            for account, ns in sorted(ns_by_account.items(), key=lambda item: -item[1])
        )
        subject = "Waiting for work from before the profile takes" if account.what == "edge" else "Initialisation takes"
        rows_by_rank = [claimed_idle_rows(rank, Claimant.START_UP) for rank in ranks or ()]
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            subject,
            evidence=f"not part of the steady state, and left out of all other findings: {parts}",
            remedy="Start the profile after some warm-up steps (torch.profiler.schedule: wait, warmup)."
            if any(rank.events.shows_torch for rank in ranks or ())
            else "Start the profile after some warm-up steps.",
            wins=0,
            confidence=confidence(_LONE_CALL_DOUBT, _doubt_of_compilation(ranks or (), rows_by_rank)),
            largest=largest_idle(ranks or (), rows_by_rank),
            level="" if cost_ns >= _MAIN_FRACTION * ledger.wall_ns else "low",
        )


def _doubt_of_compilation(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> float:
    """The doubt that compilation in a window without marks is the first one. `rows_by_rank`: rows in `idle`."""
    if all(rank.events.marks for rank in ranks):
        return 0.0
    compiled_ns = total_ns = 0
    for rank, rows in zip(ranks, rows_by_rank):
        is_compile = rank.keys(lambda account, _: account.what == "compile")
        total_ns += int(rank.idle.ns[rows].sum())
        compiled_ns += int(rank.idle.ns[rows[is_compile[rank.idle.key[rows]]]].sum())
    return _UNMARKED_COMPILATION_DOUBT * compiled_ns / max(1, total_ns)


def _ns_by_account(ledger: Ledger, ranks: Sequence[Booked]) -> dict[Account, int]:
    """Account -> ns of start-up a step, the mean over `ranks`; of the ledger without them."""
    if not ranks:
        accounts = (Account("launch_gap", "init"), Account("launch_gap", "edge"))
        return {account: ns for account in accounts if (ns := ledger.by_account().get(account, 0))}
    ns_by_account: dict[Account, int] = {}
    for rank in ranks:
        rows = claimed_idle_rows(rank, Claimant.START_UP)
        for key, ns in enumerate(sum_by_key(rank.idle.key[rows], rank.idle.ns[rows])):
            if ns:
                account = rank.pairs[key][0]
                ns_by_account[account] = ns_by_account.get(account, 0) + ns
    return {account: mean_per_step(ranks, [ns]) for account, ns in ns_by_account.items()}
