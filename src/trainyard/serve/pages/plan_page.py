"""Plans: a form whose search answers while its fields change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from trainyard.report.plans import plan_tables
from trainyard.report.plans.plan_summary import headline
from trainyard.report.plans.plans_file import Plans
from trainyard.serve.markup import Html, element, join
from trainyard.serve.pages.shell import card, hero, shell
from trainyard.serve.pages.tables import table_html
from trainyard.serve.plan_worker import PlanQuery

_MOST_DEVICES_LOG2 = 14
_MOST_BATCH_LOG2 = 14


class PlanChoices(NamedTuple):
    """`models`: name of a model that can be planned -> whether it has a sequence length. `machines`: name -> number of
    devices."""

    models: Mapping[str, bool]
    machines: Mapping[str, int]


def plan_page(query: Mapping[str, str], choices: PlanChoices, result: Html) -> Html:
    """The page with the form, filled in by a query, and a result or an error."""
    note = "Predicted step time and memory of every layout that fits, for a model and a cluster. Nothing is run."
    return shell(
        "Plan", hero("Plan", note), _form(query, choices), element("div", result, id="results"), current="Plan"
    )


def plan_result(plans: Plans, query: PlanQuery) -> Html:
    """The layouts, the ledger and the memory of the first."""
    parameters = urlencode(
        {key: value for key, value in msgspec.structs.asdict(query).items() if value and key != "front"}
    )
    links = element(
        "p",
        element("a", "Full report with charts", href=f"/plan/report?{parameters}"),
        element("a", "JSON", href=f"/api/plan?{parameters}"),
        class_="links",
    )
    answer = element("section", element("p", headline(plans), class_="summary"), links, class_="card answer")
    return join(
        answer,
        card("Layouts", "", table_html(plan_tables.layouts(plans))),
        element(
            "div",
            card("Predicted ledger of the first", "", table_html(plan_tables.ledger(plans.best.plan))),
            card("Memory of its fullest rank", "", table_html(plan_tables.memory(plans))),
            class_="sides",
        ),
    )


def plan_failure(message: str, next_step: str) -> Html:
    """Why there is no plan."""
    advice = element("p", next_step) if next_step else None
    return element("section", element("p", message, class_="summary"), advice, class_="card")


def _form(query: Mapping[str, str], choices: PlanChoices) -> Html:
    """The fields of a plan; numbers have a slider over powers of two, which the script connects."""
    model, machine = query.get("model", ""), query.get("machine", "")
    return element(
        "form",
        _select("Model", "model", model, choices.models),
        _select("Machine", "machine", machine, choices.machines),
        _number("Devices", "devices", query, choices.machines.get(machine, 64), _MOST_DEVICES_LOG2),
        _number("Batch, samples", "batch", query, 256, _MOST_BATCH_LOG2),
        _number("Sequence, tokens", "seq_len", query, 4096, 17),
        element("button", "Plan", type="submit", class_="primary"),
        method="get",
        action="/plan",
        class_="fields card",
        data_live="results",
    )


def _select(label: str, name: str, value: str, known: Mapping[str, object]) -> Html:
    """A choice of known names."""
    options = (element("option", choice, value=choice, selected=choice == value) for choice in known)
    return element("label", element("span", label), element("select", *options, name=name))


def _number(label: str, name: str, query: Mapping[str, str], default: int, most_log2: int) -> Html:
    """A whole number with a slider."""
    value = query.get(name) or str(default)
    field = element("input", type="number", name=name, value=value, min=1, step=1, required=True)
    slider = element(
        "input",
        type="range",
        min=0,
        max=most_log2,
        step=1,
        data_power_of=name,
        hidden=True,
        aria_label=f"{label}, powers of two",
    )
    return element("label", element("span", label), field, slider)
