"""The application: its addresses, and what each answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.error_report import ErrorReport
from trainyard.errors import BadInput, EnvironmentFailed, TrainyardError
from trainyard.ledger import decode_hook
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.plans_view import view_of_plans
from trainyard.report.render import html
from trainyard.run.live_run import LiveRun
from trainyard.serve import answers, run_filter
from trainyard.serve.access import COOKIE, SESSION_S, AccessGuard, AccessRules, safe_target
from trainyard.serve.event_stream import CountedStream, event_stream
from trainyard.serve.live_views import LiveView, LiveViews
from trainyard.serve.pages import compare_page, jobs_page, live_page, plan_page, runs_page, site_frame
from trainyard.serve.pages.login_page import login_page
from trainyard.serve.plan_worker import PlanQuery, PlanWorker, read_query
from trainyard.serve.result_cache import ResultCache
from trainyard.serve.served_store import ServedStore
from trainyard.serve.static_files import static_file
from trainyard.store.index.run_index import RunRow
from trainyard.store.stored_changes import RunList

_HEAVY = 2
"""Analyses, comparisons and histories that are computed at once; the others wait, and lists and plans are not delayed.
"""
_MOST_STREAMS = 64
_MOST_PARAMETER = 200
"""Characters of a parameter."""
_MOST_FORM_BYTES, _MOST_FORM_FIELDS = 8192, 8
_CHECK_S, _CHECK_SHARE = 5.0, 0.05
"""Seconds between two looks at the files of all runs, and the largest share of the time that they may take."""
_QUIET_S = 60.0
"""Seconds until the same error of the event loop is printed again."""
_PLAN_CACHE_BYTES = 32 * 1024**2
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class ServedApp:
    """The handlers of all addresses. `store`: the runs; `say`: called with messages about errors of the server."""

    def __init__(self, store: ServedStore, rules: AccessRules, say: Callable[[str], None]) -> None:
        self._store, self._rules, self._say = store, rules, say
        self._plan_worker, self._plans = PlanWorker(say), ResultCache(_PLAN_CACHE_BYTES)
        self._live, self._streams = LiveViews(), 0
        self._quiet_until = 0.0
        self._summaries: dict[str, tuple[Sequence[RunRow], Any]] = {}

    def build(self) -> Starlette:
        """The application with its middleware."""
        pages = {
            "/runs": self.runs, "/runs/{id}": self.run, "/history": self.history, "/compare": self.compare,
            "/plan": self.plan, "/plan/report": self.plan_report,
            "/api/runs": self.api_runs, "/api/runs/{id}": self.api_run, "/api/runs/{id}/ledgers": self.api_ledgers,
            "/api/runs/{id}/events": self.api_events, "/api/compare": self.api_compare,
            "/api/history/{job:path}": self.api_history, "/api/plan": self.api_plan,
            "/login": self.login, "/static/{name}": self.static,
        }  # fmt: skip
        app = Starlette(
            routes=[
                Route("/", _to_runs),
                *(Route(path, self._without_bugs(handler)) for path, handler in pages.items()),
                Route("/login", self._without_bugs(self.start_session), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _answer_http_error},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # the redirection would be to the scheme and host that the request names
        app.add_middleware(AccessGuard, rules=self._rules)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Looks for changes of the store while the server runs."""
        asyncio.get_running_loop().set_exception_handler(self._say_loop_error)
        checking = asyncio.create_task(self._keep_checking())
        try:
            yield
        finally:
            checking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await checking
            self._plan_worker.close()

    def _say_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Print an error of the event loop; one line in a while if connections cannot be accepted for lack of files,
        of which asyncio reports every attempt with a traceback."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() > self._quiet_until:
            self._quiet_until = loop.time() + _QUIET_S
            self._say("connections wait: this process has as many files open as the system allows (ulimit -n).")

    async def _keep_checking(self) -> None:
        """Look at the files of all runs every few seconds, less often for a large store."""
        clock, took_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(max(_CHECK_S, took_s / _CHECK_SHARE))
            started = clock.time()
            try:
                await run_in_threadpool(self._store.check_all)
            except (OSError, TrainyardError) as error:
                self._say(f"the store cannot be read: {error}")
            took_s = clock.time() - started

    # ---- pages ----

    async def runs(self, request: Request) -> Response:
        """The list of runs."""
        query = _query(request)
        return await run_in_threadpool(self._runs, query)

    def _runs(self, query: Mapping[str, str]) -> Response:
        filter, rows = run_filter.read_filter(query), self._store.rows()
        shown = run_filter.apply(filter, rows)
        choices = self._summary("choices", rows, runs_page.choices_of)
        content = runs_page.runs_page(filter, shown, choices, str(self._store.store.root))
        return answers.page(content)

    async def run(self, request: Request) -> Response:
        """The report of a run, or the live page of a run whose end is not recorded."""
        id = request.path_params["id"]
        if "report" not in _query(request):
            head = await run_in_threadpool(self._store.head, id)
            if head.state == "incomplete":
                update, _ = await self._look(self._live.view(self._store.folder(id)))
                return answers.page(live_page.live_page(head, update))
        return answers.report_page(await self._heavy(self._store.run_page, id))

    async def _look(self, view: LiveView) -> tuple[LiveRun, int]:
        """The latest update on a run in progress. The first look may read megabytes of each rank."""
        return await (self._heavy(view.look) if view.is_first else run_in_threadpool(view.look))

    async def history(self, request: Request) -> Response:
        """The history of a job, or the list of jobs."""
        query = _query(request)
        if job := query.get("job", ""):
            return answers.report_page(await self._heavy(self._store.history_page, job, query.get("metric", "")))
        return answers.page(
            await run_in_threadpool(lambda: self._summary("jobs", self._store.rows(), jobs_page.jobs_page))
        )

    async def compare(self, request: Request) -> Response:
        """The comparison of two runs, or the page to choose them."""
        query = _query(request)
        base, new = query.get("base", ""), query.get("new", "")
        if base and new:
            return answers.report_page(await self._heavy(self._store.comparison_page, base, new))
        return answers.page(await run_in_threadpool(lambda: compare_page.choose_page(base, new, self._store.rows())))

    async def plan(self, request: Request) -> Response:
        """The form of a plan with its result."""
        query = _query(request)
        choices = await run_in_threadpool(lambda: self._plan_choices)
        if not query:
            first = {"model": next(iter(choices.models)), "machine": next(iter(choices.machines))}
            hint = plan_page.plan_failure("Choose a model and a cluster.", "The fastest layouts appear here.")
            return answers.page(plan_page.plan_page(first, choices, hint))
        try:
            plan_query = msgspec.structs.replace(read_query(query, choices.models, choices.machines), front=False)
            plans = msgspec.json.decode(await self._plan(request, plan_query), type=Plans, dec_hook=decode_hook)
            result, status = plan_page.plan_result(plans, plan_query), 200
        except BadInput as error:
            result, status = plan_page.plan_failure(error.message, error.next_step), 400
        return answers.page(plan_page.plan_page(query, choices, result), status)

    async def plan_report(self, request: Request) -> Response:
        """The report page of a plan."""
        plan_query = await self._plan_query(request)
        document = await self._plan(request, plan_query)

        def make() -> bytes:
            plans = msgspec.json.decode(document, type=Plans, dec_hook=decode_hook)
            frame = site_frame.site_frame("Plan", (("Plan", f"/plan?{request.url.query}"), (plan_query.model, "")))
            return html.page(view_of_plans(plans), frame).encode()

        return answers.report_page(await self._heavy(make))

    # ---- documents ----

    async def api_runs(self, request: Request) -> Response:
        """The runs that match, newest first; the header X-Total-Count has their number on all pages."""
        query = _query(request)

        def make() -> Response:
            shown = run_filter.apply(run_filter.read_filter(query), self._store.rows())
            return answers.document(RunList(runs=tuple(shown.rows)), {"x-total-count": str(shown.total)})

        return await run_in_threadpool(make)

    async def api_run(self, request: Request) -> Response:
        """A run, as `trainyard runs show --json` prints it."""
        return answers.json_text(await self._heavy(self._store.run_document, request.path_params["id"]))

    async def api_ledgers(self, request: Request) -> Response:
        """The ledgers of a run."""
        id = request.path_params["id"]
        return answers.json_text(await run_in_threadpool(self._store.ledgers_document, id))

    async def api_compare(self, request: Request) -> Response:
        """The comparison of two runs, as `trainyard diff --json` prints it."""
        query = _query(request)
        base, new = (_required(query, name) for name in ("base", "new"))
        return answers.json_text(await self._heavy(self._store.comparison_document, base, new))

    async def api_history(self, request: Request) -> Response:
        """The history of a job, as `trainyard history --json` prints it."""
        job, metric = request.path_params["job"], _query(request).get("metric", "")
        return answers.json_text(await self._heavy(self._store.history_document, job, metric))

    async def api_plan(self, request: Request) -> Response:
        """Plans, as `trainyard plan --json` prints them."""
        return answers.json_text(await self._plan(request, await self._plan_query(request)))

    async def api_events(self, request: Request) -> Response:
        """The steps and incidents of a run in progress as server-sent events."""
        folder = await run_in_threadpool(self._store.folder, request.path_params["id"])
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._streams >= _MOST_STREAMS:
            raise HTTPException(503, f"{_MOST_STREAMS} live views are open; close one.")
        self._streams += 1
        view = self._live.view(folder)
        return CountedStream(event_stream(view, lambda: self._look(view)), self._end_stream)

    def _end_stream(self) -> None:
        self._streams -= 1

    # ---- access and files ----

    async def login(self, request: Request) -> Response:
        """The form for the token; the first page if none is needed."""
        target = safe_target(request.query_params.get("next", "/"))  # may be longer than other parameters
        return answers.page(login_page(target, is_refused=False)) if self._rules.token else answers.redirect(target)

    async def start_session(self, request: Request) -> Response:
        """Checks a token and gives the browser a cookie."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_FORM_BYTES:
                raise HTTPException(413, f"The form has more than {_MOST_FORM_BYTES:,} bytes.")
        try:
            form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FORM_FIELDS)
        except ValueError as error:
            raise BadInput(f"The form has more than {_MOST_FORM_FIELDS} fields.") from error
        target = safe_target(form.get("next", ["/"])[0])
        if not self._rules.token:
            return answers.redirect(target)
        if not self._rules.accepts_token(form.get("token", [""])[0].strip()):
            return answers.page(login_page(target, is_refused=True), 401)
        response = answers.redirect(target)
        response.set_cookie(
            COOKIE, self._rules.new_session(), max_age=SESSION_S, httponly=True, samesite="strict",
            secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").strip().lower()),
        )  # fmt: skip
        return response

    async def static(self, request: Request) -> Response:
        """A file of the server's pages."""
        file = static_file(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "There is no such file.")
        # A script that another one imports has no digest in its address.
        cache = "private, max-age=31536000, immutable" if request.url.query == file.digest else "no-cache"
        return Response(file.content, media_type=file.media_type, headers={"cache-control": cache})

    # ---- parts ----

    def _summary(self, name: str, rows: Sequence[RunRow], compute: Callable[[Sequence[RunRow]], T]) -> T:
        """A value that is computed from all rows, once for each list of them. `name`: of the value."""
        known = self._summaries.get(name)
        if known is None or known[0] is not rows:
            known = self._summaries[name] = (rows, compute(rows))
        return known[1]

    @cached_property
    def _plan_choices(self) -> plan_page.PlanChoices:
        """The models and machines that can be planned for."""
        from trainyard import api, machine

        known = api.catalogue("models").models.values()
        models = {model.name: model.workload == "transformer" for model in known if model.planned}
        return plan_page.PlanChoices(models, {name: machine.load(name).devices for name in machine.known()})

    async def _plan_query(self, request: Request) -> PlanQuery:
        choices = await run_in_threadpool(lambda: self._plan_choices)
        return read_query(_query(request), choices.models, choices.machines)

    async def _plan(self, request: Request, plan_query: PlanQuery) -> bytes:
        """The document of plans, searched once for each query and one after the other. Raises `ClientDisconnect` if the
        client has gone when its turn comes."""
        if (document := self._plans.known(plan_query)) is not None:
            return document
        async with self._plan_turn:
            if await request.is_disconnected():
                raise ClientDisconnect
            return await run_in_threadpool(self._plans.get, plan_query, lambda: self._plan_worker.plan(plan_query))

    @cached_property
    def _plan_turn(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(1)

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_HEAVY)

    async def _heavy(self, compute: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that may take seconds, in a thread of its own."""
        return await anyio.to_thread.run_sync(lambda: compute(*arguments), limiter=self._limiter)

    def _without_bugs(self, handler: Handler) -> Handler:
        """The handler, with a response for every error."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except TrainyardError as error:
                return answers.response_of(error, answers.wants_json(request.scope))
            except HTTPException:
                raise
            except OSError as error:
                return await run_in_threadpool(self._answer_unreadable, request, error)
            except asyncio.CancelledError:  # the server ends; uvicorn would print a traceback
                return Response(status_code=503)
            except ClientDisconnect:
                return Response(status_code=400)  # the client has gone and does not read it
            except Exception as error:
                return self._answer_bug(request, error)

        return answer

    def _answer_unreadable(self, request: Request, error: OSError) -> Response:
        """The response to a request whose files cannot be read: 404 if a run was deleted meanwhile, otherwise 503."""
        query = request.query_params
        ids = (request.path_params.get("id"), query.get("base"), query.get("new"))
        try:
            for id in filter(None, ids):
                self._store.folder(id)
            self._say(f"{request.url.path}: {error}")
            raise EnvironmentFailed("The files of the store cannot be read.", "The server's messages name the error.")
        except TrainyardError as failure:
            return answers.response_of(failure, answers.wants_json(request.scope))

    def _answer_bug(self, request: Request, error: Exception) -> Response:
        """The response to an error of the server, whose text is only printed there."""
        self._say(f"{request.url.path}: {type(error).__name__}: {error}. This is a bug in trainyard: please report it.")
        report = ErrorReport(
            code=TrainyardError.code, exit_code=TrainyardError.exit_code, message="The server failed.",
            next_step="Its messages name the error.",
        )  # fmt: skip
        return answers.error_response(report, 500, answers.wants_json(request.scope))


def build_app(store: ServedStore, rules: AccessRules, say: Callable[[str], None]) -> Starlette:
    """The application that serves `store` to the readers that `rules` accept. `say`: called with messages for the user
    who started it."""
    return ServedApp(store, rules, say).build()


async def _to_runs(_: Request) -> Response:
    return answers.redirect("/runs")


async def _answer_http_error(request: Request, error: Any) -> Response:
    """The response to an unknown address, a method that is not allowed, and the like."""
    message = {404: "There is no such page.", 405: "This address cannot be used in this way."}
    report = ErrorReport(
        code=BadInput.code, exit_code=BadInput.exit_code, message=message.get(error.status_code, str(error.detail))
    )
    return answers.error_response(report, error.status_code, answers.wants_json(request.scope), error.headers)


def _query(request: Request) -> Mapping[str, str]:
    """The parameters of a request. Raises `BadInput` for one that is too long or given twice."""
    items = request.query_params.multi_items()
    for name, value in items:
        if len(name) > _MOST_PARAMETER or len(value) > _MOST_PARAMETER:
            raise BadInput(f"The parameter {name[:40]!r} has more than {_MOST_PARAMETER} characters.")
    query = dict(items)
    if len(query) < len(items):
        raise BadInput("A parameter is given twice.")
    return query


def _required(query: Mapping[str, str], name: str) -> str:
    """A parameter that must be given. Raises `BadInput`."""
    if not query.get(name):
        raise BadInput(f"The parameter {name!r} is missing.")
    return query[name]
