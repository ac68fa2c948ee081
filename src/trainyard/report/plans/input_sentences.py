"""Sentences on the settings and the notes of a plan, for messages next to its tables."""

from __future__ import annotations

from trainyard.report.plans.plans_file import Plans

_MOST_CHARACTERS = 500
"""Length of a list of settings in a sentence."""


def input_sentences(plans: Plans) -> tuple[str, ...]:
    """A sentence on the ignored settings, one on the unknown ones, one for each setting that is predicted differently,
    and the notes."""
    return (
        *_listed("Ignored settings, which hardly cost time", plans.ignored_settings),
        *_listed("Unknown settings, left out of the prediction", plans.unknown_settings),
        *(f"Evaluated differently: {setting}." for setting in plans.differing_settings),
        *plans.notes,
    )


def _listed(name: str, settings: tuple[str, ...]) -> tuple[str, ...]:
    """The sentence that lists `settings` under `name`; none without settings."""
    listed = ", ".join(settings)
    cut = "..." if len(listed) > _MOST_CHARACTERS else ""
    return (f"{name}: {listed[:_MOST_CHARACTERS]}{cut}.",) if settings else ()
