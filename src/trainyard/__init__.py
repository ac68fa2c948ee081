"""trainyard plans, runs, profiles, diagnoses and gates the training of large models.

The public names are loaded when first used, so that `import trainyard` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Account": "ledger",
    "AccountChange": "ledger",
    "Claim": "machine",
    "Collective": "events",
    "Device": "machine",
    "Entry": "ledger",
    "Events": "events",
    "Finding": "finding",
    "Job": "job",
    "Layout": "layout",
    "Ledger": "ledger",
    "Link": "machine",
    "Machine": "machine",
    "Measure": "job",
    "Model": "job",
    "Operation": "cost",
    "Plan": "plan",
    "Provenance": "record",
    "RateCurve": "machine",
    "Recipe": "recipe",
    "Remedy": "finding",
    "Run": "record",
    "Sample": "record",
    "Scope": "ledger",
    "TrainyardError": "errors",
    "analyse": "api",
    "build_tables": "trace.export.trace_tables",
    "diff": "api",
    "gate": "api",
    "history": "api",
    "mean": "ledger",
    "measure_files": "trace.measure",
    "parity": "api",
    "probe": "api",
    "step": "run.script.step_mark",
    "what_if": "trace.whatif.what_if",
}
__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"trainyard.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'trainyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, "__version__", "api"])
