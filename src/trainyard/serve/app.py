"""The application: its addresses, and what each answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.errors import TrainyardError
from trainyard.run.live_run import LiveRun
from trainyard.serve import answers, run_filter
from trainyard.serve.access import AccessGuard, AccessRules
from trainyard.serve.error_answers import ErrorAnswers, answer_http_error
from trainyard.serve.event_stream import CountedStream, event_stream
from trainyard.serve.live_views import LiveView, LiveViews
from trainyard.serve.login_handlers import LoginHandlers
from trainyard.serve.pages import compare_page, jobs_page, live_page, runs_page
from trainyard.serve.plan_handlers import PlanHandlers
from trainyard.serve.query_parameters import read_parameters, required
from trainyard.serve.served_store import ServedStore
from trainyard.serve.static_files import static_file
from trainyard.store.index.run_index import RunRow
from trainyard.store.stored_changes import RunList

_HEAVY = 2
"""Analyses, comparisons and histories that are computed at once; the others wait, and lists and plans are not delayed.
"""
_MOST_STREAMS = 64
_CHECK_S, _CHECK_SHARE = 5.0, 0.05
"""Seconds between two looks at the files of all runs, and the largest share of the time that they may take."""
_QUIET_S = 60.0
"""Seconds until the same error of the event loop is printed again."""
T = TypeVar("T")


class ServedApp:
    """The handlers of all addresses. `store`: the runs; `say`: called with messages about errors of the server."""

    def __init__(self, store: ServedStore, rules: AccessRules, say: Callable[[str], None]) -> None:
        self._store, self._rules, self._say = store, rules, say
        self._plans, self._login = PlanHandlers(self._heavy, say), LoginHandlers(rules)
        self._errors = ErrorAnswers(store.folder, say)
        self._live, self._streams = LiveViews(), 0
        self._quiet_until = 0.0
        self._summaries: dict[str, tuple[Sequence[RunRow], Any]] = {}

    def build(self) -> Starlette:
        """The application with its middleware."""
        pages = {
            "/runs": self.runs, "/runs/{id}": self.run, "/history": self.history, "/compare": self.compare,
            "/plan": self._plans.page, "/plan/report": self._plans.report,
            "/api/runs": self.api_runs, "/api/runs/{id}": self.api_run, "/api/runs/{id}/ledgers": self.api_ledgers,
            "/api/runs/{id}/events": self.api_events, "/api/compare": self.api_compare,
            "/api/history/{job:path}": self.api_history, "/api/plan": self._plans.document,
            "/login": self._login.page, "/static/{name}": self.static,
        }  # fmt: skip
        app = Starlette(
            routes=[
                Route("/", _to_runs),
                *(Route(path, self._errors.wrap(handler)) for path, handler in pages.items()),
                Route("/login", self._errors.wrap(self._login.start_session), methods=["POST"]),
            ],
            exception_handlers={HTTPException: answer_http_error},
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
            self._plans.close()

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
        query = read_parameters(request)
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
        if "report" not in read_parameters(request):
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
        query = read_parameters(request)
        if job := query.get("job", ""):
            return answers.report_page(await self._heavy(self._store.history_page, job, query.get("metric", "")))
        return answers.page(
            await run_in_threadpool(lambda: self._summary("jobs", self._store.rows(), jobs_page.jobs_page))
        )

    async def compare(self, request: Request) -> Response:
        """The comparison of two runs, or the page to choose them."""
        query = read_parameters(request)
        base, new = query.get("base", ""), query.get("new", "")
        if base and new:
            return answers.report_page(await self._heavy(self._store.comparison_page, base, new))
        return answers.page(await run_in_threadpool(lambda: compare_page.choose_page(base, new, self._store.rows())))

    # ---- documents ----

    async def api_runs(self, request: Request) -> Response:
        """The runs that match, newest first; the header X-Total-Count has their number on all pages."""
        query = read_parameters(request)

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
        query = read_parameters(request)
        base, new = (required(query, name) for name in ("base", "new"))
        return answers.json_text(await self._heavy(self._store.comparison_document, base, new))

    async def api_history(self, request: Request) -> Response:
        """The history of a job, as `trainyard history --json` prints it."""
        job, metric = request.path_params["job"], read_parameters(request).get("metric", "")
        return answers.json_text(await self._heavy(self._store.history_document, job, metric))

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
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_HEAVY)

    async def _heavy(self, compute: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that may take seconds, in a thread of its own."""
        return await anyio.to_thread.run_sync(lambda: compute(*arguments), limiter=self._limiter)


def build_app(store: ServedStore, rules: AccessRules, say: Callable[[str], None]) -> Starlette:
    """The application that serves `store` to the readers that `rules` accept. `say`: called with messages for the user
    who started it."""
    return ServedApp(store, rules, say).build()


async def _to_runs(_: Request) -> Response:
    return answers.redirect("/runs")
