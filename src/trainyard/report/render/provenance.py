"""The provenance of a run as named lines of text."""

from __future__ import annotations

from trainyard.record import Run


def provenance_rows(run: Run) -> list[tuple[str, str]]:
    """(name, text) of each part of the run's provenance that is known."""
    provenance = run.provenance
    devices = ", ".join(sorted({device.name for device in provenance.devices}))
    tables = (
        ("code", provenance.code),
        ("packages", provenance.packages),
        ("torch", _short(provenance.torch_build)),
        ("driver", provenance.driver),
        ("host", provenance.host),
        ("environment", provenance.environment),
        ("clocks", provenance.clocks),
        ("digests", provenance.digests),
    )
    rows = [(name, ", ".join(f"{key} {value}" for key, value in table.items())) for name, table in tables]
    origin = f"the checkpoint of run {run.origin.run} after step {run.origin.step + 1}" if run.origin else ""
    rows = [("started from", origin), ("devices", devices), *rows, ("text", provenance.text)]
    return [(name, text) for name, text in rows if text]


def _short(build: dict[str, str]) -> dict[str, str]:
    """The build without its multi-line listings, which --json has."""
    return {key: value for key, value in build.items() if "\n" not in value}
