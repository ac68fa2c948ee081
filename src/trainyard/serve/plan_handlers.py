"""The plan page, its report and its document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trainyard.errors import BadInput
from trainyard.ledger import decode_hook
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.plans_view import view_of_plans
from trainyard.report.render import html
from trainyard.serve import answers
from trainyard.serve.pages import plan_page, site_frame
from trainyard.serve.plan_worker import PlanQuery, PlanWorker, read_query
from trainyard.serve.query_parameters import read_parameters
from trainyard.serve.result_cache import ResultCache

_CACHE_BYTES = 32 * 1024**2


class PlanHandlers:
    """The handlers of plans. `in_thread`: runs a function that may take seconds in a thread; `say`: called with
    messages about errors of the search."""

    def __init__(
        self, in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]], say: Callable[[str], None]
    ) -> None:
        self._in_thread = in_thread
        self._worker, self._cache = PlanWorker(say), ResultCache(_CACHE_BYTES)

    def close(self) -> None:
        """Ends the process that searches."""
        self._worker.close()

    async def page(self, request: Request) -> Response:
        """The form of a plan with its result."""
        query = read_parameters(request)
        choices = await run_in_threadpool(lambda: self._choices)
        if not query:
            first = {"model": next(iter(choices.models)), "machine": next(iter(choices.machines))}
            hint = plan_page.plan_failure("Choose a model and a cluster.", "The fastest layouts appear here.")
            return answers.page(plan_page.plan_page(first, choices, hint))
        try:
            plan_query = msgspec.structs.replace(read_query(query, choices.models, choices.machines), front=False)
            plans = msgspec.json.decode(await self._search(request, plan_query), type=Plans, dec_hook=decode_hook)
            result, status = plan_page.plan_result(plans, plan_query), 200
        except BadInput as error:
            result, status = plan_page.plan_failure(error.message, error.next_step), 400
        return answers.page(plan_page.plan_page(query, choices, result), status)

    async def report(self, request: Request) -> Response:
        """The report page of a plan."""
        plan_query = await self._query(request)
        document = await self._search(request, plan_query)

        def make() -> bytes:
            plans = msgspec.json.decode(document, type=Plans, dec_hook=decode_hook)
            frame = site_frame.site_frame("Plan", (("Plan", f"/plan?{request.url.query}"), (plan_query.model, "")))
            return html.page(view_of_plans(plans), frame).encode()

        return answers.report_page(await self._in_thread(make))

    async def document(self, request: Request) -> Response:
        """Plans, as `trainyard plan --json` prints them."""
        return answers.json_text(await self._search(request, await self._query(request)))

    @cached_property
    def _choices(self) -> plan_page.PlanChoices:
        """The models and machines that can be planned for."""
        from trainyard import api, machine

        known = api.catalogue("models").models.values()
        models = {model.name: model.workload == "transformer" for model in known if model.planned}
        return plan_page.PlanChoices(models, {name: machine.load(name).devices for name in machine.known()})

    async def _query(self, request: Request) -> PlanQuery:
        """The query of a request. Raises `BadInput` for unknown names and numbers out of range."""
        choices = await run_in_threadpool(lambda: self._choices)
        return read_query(read_parameters(request), choices.models, choices.machines)

    async def _search(self, request: Request, plan_query: PlanQuery) -> bytes:
        """The document of plans, searched once for each query and one after the other. Raises `ClientDisconnect` if the
        client has gone when its turn comes."""
        if (document := self._cache.known(plan_query)) is not None:
            return document
        async with self._turn:
            if await request.is_disconnected():
                raise ClientDisconnect
            return await run_in_threadpool(self._cache.get, plan_query, lambda: self._worker.plan(plan_query))

    @cached_property
    def _turn(self) -> anyio.CapacityLimiter:
        """Held by the query that is searched. Created by its first user: it belongs to the running event loop."""
        return anyio.CapacityLimiter(1)
