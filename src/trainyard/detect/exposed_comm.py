"""exposed_comm: communication that no compute covers.

What it does: takes the dearest collective (over its groups) from the comm accounts.
Why it matters: the device waits for the network although it has work it could overlap.
Example: `comm/all_reduce@world` owns 13 ms of a 222 ms step, and only 16 % of it is hidden.
Remedy: overlap it (bucketed gradients, prefetched parameters), move it to a faster link, or send less.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.detect.wording import whole
from trainyard.events import Events
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.02  # of the step: below it nobody would act


class ExposedComm:
    rule = "exposed_comm"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Events] | None) -> Sequence[Finding]:
        comm = {account: ns for account, ns in ledger.by_account().items() if account.kind == "comm"}
        if not comm or not ledger.wall_ns:
            return ()
        exposed = sum(comm.values())
        if exposed < _LEAST * ledger.wall_ns:
            return ()
        dearest = max(comm, key=lambda account: comm[account])
        union = max(ledger.unions.get("comm", 0), exposed)
        aligned = ledger.scope.aligned != "no"
        share = units.show_share(union - exposed, union)
        return (
            Finding(
                rule=self.rule,
                severity=severity(exposed, ledger.wall_ns),
                account=dearest,
                cost_ns=exposed,
                says=f"Exposed communication, most of it {_label(dearest)}, "
                f"costs {units.show_time(exposed)} of {whole(ledger)}",
                evidence=f"{share} of communication is hidden under compute; "
                + (
                    "waiting for late ranks is told apart"
                    if ledger.scope.aligned != "no"
                    else "waiting for late ranks is in it"
                ),
                remedy=Remedy(
                    says="Overlap it: gradient buckets, parameter prefetch, or a layout that sends less.",
                    wins_ns=exposed,
                ),
                # Unaligned, some of it may be waiting for a late rank and no matter of the network at all.
                sure=0.9 if aligned else 0.6,
            ),
        )


def _label(account: Account) -> str:
    return words.COLLECTIVES[account.what].label + (f" on {account.group}" if account.group else "")
