"""Part 4: the machine file that `trainyard probe` makes of the device, and a plan with it."""

from __future__ import annotations

from benchmarks import dense
from benchmarks.collect import Session
from benchmarks.evidence import Devices

DTYPE = "bfloat16"


def run(session: Session, devices: Devices) -> bool:
    """Whether the probe wrote a machine file that the planner accepts."""
    machine = session.store.with_name("machine.toml")
    done = session.trainyard("probe", "--dtype", DTYPE, "--out", str(machine), "--json", limit=session.left_s)
    session.keep("probe.json", done.stdout)
    if done.returncode:
        session.keep("README.md", f"# Probe\n\nIt ended with {done.returncode}:\n\n    {done.stderr.strip()}\n")
        return False
    session.keep("machine.toml", machine.read_text("utf-8"))
    job = session.store.with_name("job.toml")
    job.write_text(dense.job_text(dense.Size(16, 2048), 1), "utf-8")
    planned = session.must("plan", "check", str(job), "--machine", str(machine), "--full")
    session.keep("plan.txt", planned)
    session.keep(
        "README.md",
        "# Probe\n\nmachine.toml: `trainyard probe`; probe.json: its timed calls; plan.txt: a dense job of one billion "
        "parameters planned with it.\n",
    )
    return True
