"""The routes of the HTTP API. They use only the state store (`state.pipeline`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Header, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic.json_schema import SkipJsonSchema
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from dblog.control import metrics
from dblog.control.access import Who, session_routes, sign_in_routes
from dblog.control.answers import (
    Dumps,
    DumpState,
    Election,
    Health,
    Live,
    Pipelines,
    PipelineState,
    Problem,
    Retried,
    Schemas,
    Settings,
    Status,
    Tables,
    Waiting,
)
from dblog.control.assets import add_assets
from dblog.control.events import Busy, EventStream, Hub
from dblog.control.grid import grid_routes
from dblog.control.guard import Gate, Limit, problem
from dblog.control.overview import overview_routes
from dblog.control.page import add_page
from dblog.control.requests import Change, Choice, Following, Listing, NewDump, Number
from dblog.control.session import Tokens
from dblog.control.stores import Stores
from dblog.errors import ConfigError, Conflict, DBLogError, NotFound, StateError
from dblog.state.pipeline import Pipeline, pipelines
from dblog.state.pipeline import ready as is_ready
from dblog.state.requests import Wish, read_request
from dblog.state.store import Store

PREFIX = "/api/v1"
log = logging.getLogger(__name__)

HINTS = {
    401: "ask the operator of the server for the token",
    404: "/docs lists the routes",
    405: "/docs lists the routes",
    413: "make several requests",
}

Chosen = Annotated[Choice, Query()]
Answers = dict[int | str, dict[str, Any]]


class Refused(DBLogError):
    """The request cannot be done in the present state."""


def create_app(open_store: Callable[[], Store], *, token: str | None = None, read_token: str | None = None) -> FastAPI:
    """The API over a state store, and its page. If there is a token, all routes except the health probes and the files
    of the page need it. With `read_token` a caller may only read."""
    tokens = Tokens.of(token, read_token)
    app = FastAPI(
        title="DBLog control plane",
        version="1",
        description="Dumps, settings and the state of pipelines. Errors are `{error, hint}`.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    stores, hub = Stores(open_store), Hub(open_store)
    app.state.hub = hub
    guarded = _problems(403) if token is None else _problems(401, 403)
    security = [] if token is None else [Security(HTTPBearer(auto_error=False))]
    app.include_router(_health(stores))
    app.include_router(sign_in_routes(tokens), responses=_problems(400, 401, 403, 413, 422))
    app.include_router(session_routes(tokens), responses=guarded, dependencies=security)
    for router in (overview_routes(stores, PREFIX), grid_routes(stores, PREFIX)):
        app.include_router(router, responses={**guarded, **_problems(404, 422, 503)}, dependencies=security)
    for router in (_overview(stores), _pipeline(stores), _dumps(stores), _events(stores, hub)):
        app.include_router(router, responses=guarded, dependencies=security)
    add_page(app)
    add_assets(app)
    _explain_errors(app)
    app.add_middleware(Limit)
    app.add_middleware(Gate, tokens=tokens)
    return app


def _health(stores: Stores) -> APIRouter:
    router = APIRouter(prefix="/health", tags=["health"])
    answers: Answers = {422: {"model": Problem}, 503: {"model": Health}}

    @router.get("/live")
    async def live() -> Live:
        """The server answers."""
        return Live()

    @router.get("", responses=answers)
    @router.get("/ready", responses=answers)
    def ready(choice: Chosen, response: Response) -> Health:
        """Whether the store answers and the pipeline (or every pipeline) runs, or has waited for less than
        `unready_after` seconds."""
        try:
            with stores.open() as store:
                names = pipelines(store) if choice.pipeline is None else [choice.pipeline]
                found = {name: Pipeline(store, name).status() for name in names}
        except StateError as error:
            log.warning("the state store does not answer: %s", error)
            response.status_code = 503
            return Health(ready=False, store=False, pipelines={}, waiting={}, left_out={}, failed_tables={}, ha={})
        healthy = bool(found) and all(is_ready(status) for status in found.values())
        response.status_code = 200 if healthy else 503
        states = {name: str(status["state"]) for name, status in found.items()}
        waiting = {name: Waiting.model_validate(status) for name, status in found.items() if "since" in status}
        left_out = {name: sorted(status["left_out"]) for name, status in found.items() if status.get("left_out")}
        failed = {
            name: sorted(status["failed_tables"]) for name, status in found.items() if status.get("failed_tables")
        }
        return Health(
            ready=healthy,
            store=True,
            pipelines=states,
            waiting=waiting,
            left_out=left_out,
            failed_tables={n: t for n, t in failed.items() if t},
            ha={name: Election.model_validate(status["ha"]) for name, status in found.items() if "ha" in status},
        )

    return router


def _overview(stores: Stores) -> APIRouter:
    router = APIRouter(tags=["all pipelines"], responses=_problems(503))

    @router.get("/metrics", response_class=PlainTextResponse)
    def prometheus() -> PlainTextResponse:
        """The metrics of all pipelines in Prometheus' text format."""
        with stores.open() as store:
            seen = [metrics.Seen.of(Pipeline(store, name)) for name in pipelines(store)]
        return PlainTextResponse(metrics.render(seen), media_type=metrics.CONTENT_TYPE)

    @router.get(PREFIX + "/pipelines")
    def list_pipelines() -> Pipelines:
        """All pipelines in the store, and their states."""
        with stores.open() as store:
            states = {name: str(Pipeline(store, name).status()["state"]) for name in pipelines(store)}
        return Pipelines(pipelines=[PipelineState(name=name, state=state) for name, state in states.items()])

    return router


def _pipeline(stores: Stores) -> APIRouter:
    router = APIRouter(prefix=PREFIX, tags=["pipeline"], responses=_problems(404, 422, 503))

    @router.get("/status")
    def status(choice: Chosen) -> Status:
        """The status that the pipeline wrote last."""
        with stores.pipeline(choice) as pipeline:
            return Status.model_validate(pipeline.status())

    @router.get("/tables")
    def tables(choice: Chosen) -> Tables:
        """The tables that the pipeline follows."""
        with stores.pipeline(choice) as pipeline:
            return Tables.model_validate({"pipeline": pipeline.name, "tables": pipeline.status().get("tables", {})})

    @router.post("/tables/{table}/retry", status_code=202)
    def retry_table(table: str, choice: Chosen) -> Retried:
        """Take a table up again that is set aside: it is emptied, dumped and followed."""
        with stores.pipeline(choice) as pipeline:
            return Retried.model_validate(pipeline.retry(table))

    @router.get("/schemas")
    def schemas(choice: Chosen) -> Schemas:
        """All table schemas with which events were captured."""
        with stores.pipeline(choice) as pipeline:
            return Schemas.model_validate({"pipeline": pipeline.name, "schemas": pipeline.schemas()})

    @router.get("/settings")
    def settings(choice: Chosen) -> Settings:
        """The throttle."""
        with stores.pipeline(choice) as pipeline:
            return Settings.of(pipeline.settings())

    @router.patch("/settings", responses=_problems(400, 413))
    def change_settings(change: Change, choice: Chosen, who: Who) -> Settings:
        """Change some settings of the throttle. A running pipeline uses them at once."""
        with stores.pipeline(choice, who) as pipeline:
            return Settings.of(pipeline.change(change.model_dump(exclude_unset=True)))

    @router.post("/pause")
    def pause(choice: Chosen, who: Who) -> Settings:
        """Pause all dumps. Changes from the log are still delivered."""
        with stores.pipeline(choice, who) as pipeline:
            return Settings.of(pipeline.change({"paused": True}))

    @router.post("/resume")
    def resume(choice: Chosen, who: Who) -> Settings:
        """Resume all dumps."""
        with stores.pipeline(choice, who) as pipeline:
            return Settings.of(pipeline.change({"paused": False}))

    return router


def _dumps(stores: Stores) -> APIRouter:
    router = APIRouter(prefix=PREFIX + "/dumps", tags=["dumps"], responses=_problems(404, 422, 503))
    location: Answers = {201: {"headers": {"Location": {"schema": {"type": "string"}, "required": True}}}}

    @router.get("")
    def list_dumps(listing: Annotated[Listing, Query()]) -> Dumps:
        """All dumps, the oldest first, without the requested keys."""
        with stores.pipeline(listing) as pipeline:
            dumps = [DumpState.of(dump) for dump in pipeline.dumps()]
        left_out: dict[str, Any] = {"keys": None, **({"progress": {}} if listing.brief else {})}
        return Dumps(dumps=[dump.model_copy(update=left_out) for dump in dumps])

    @router.post("", status_code=201, responses={**location, **_problems(400, 413)})
    def request_dump(new: NewDump, choice: Chosen, who: Who, response: Response) -> DumpState:
        """Request a dump. It begins when the pipeline runs and sees the request."""
        with stores.pipeline(choice, who) as pipeline:
            dump = pipeline.submit(read_request(new.tables, new.keys, new.where))
        query = "" if choice.pipeline is None else "?" + urlencode({"pipeline": choice.pipeline})
        response.headers["location"] = f"{PREFIX}/dumps/{dump.id}{query}"
        return DumpState.of(dump)

    @router.get("/{dump_id}")
    def show_dump(dump_id: str, choice: Chosen) -> DumpState:
        """One dump, by its id or by the number at the start of its id."""
        with stores.pipeline(choice) as pipeline:
            return DumpState.of(pipeline.dump(dump_id))

    def wish(dump_id: str, choice: Choice, who: str, wanted: Wish) -> DumpState:
        with stores.pipeline(choice, who) as pipeline:
            try:
                return DumpState.of(pipeline.wish(dump_id, wanted))
            except NotFound:
                raise
            except StateError as error:
                pipeline.dump(dump_id)  # raises if the store does not answer
                raise Refused(error.message, hint=error.hint) from error

    @router.post("/{dump_id}/pause", responses=_problems(409))
    def pause_dump(dump_id: str, choice: Chosen, who: Who) -> DumpState:
        """Pause this dump."""
        return wish(dump_id, choice, who, Wish.pause)

    @router.post("/{dump_id}/resume", responses=_problems(409))
    def resume_dump(dump_id: str, choice: Chosen, who: Who) -> DumpState:
        """Resume this dump."""
        return wish(dump_id, choice, who, Wish.run)

    @router.post("/{dump_id}/cancel", responses=_problems(409))
    def cancel_dump(dump_id: str, choice: Chosen, who: Who) -> DumpState:
        """Cancel this dump."""
        return wish(dump_id, choice, who, Wish.cancel)

    return router


def _events(stores: Stores, hub: Hub) -> APIRouter:
    router = APIRouter(prefix=PREFIX, tags=["events"], responses=_problems(404, 422, 503))

    @router.get("/events", status_code=200, response_class=EventStream)
    async def events(
        following: Annotated[Following, Query()],
        last_event_id: Annotated[Number | SkipJsonSchema[None], Header()] = None,
    ) -> EventStream:
        """The events of the algorithm, as server-sent events. With `Last-Event-ID` they continue after that entry."""

        def chosen() -> str:
            with stores.pipeline(following) as pipeline:
                return pipeline.name

        name = await anyio.to_thread.run_sync(chosen)
        after = following.after if last_event_id is None else last_event_id
        position = await hub.position(name, after, following.last)
        return EventStream(hub, name, position, frozenset(following.kind))

    return router


def _problems(*statuses: int) -> Answers:
    # A reference, not a model: FastAPI would describe a model with the content type of the route's normal answer.
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def _explain_errors(app: FastAPI) -> None:
    """Give every error the same shape."""
    statuses: dict[type[DBLogError], int] = {
        ConfigError: 422,
        NotFound: 404,
        Conflict: 409,
        Refused: 409,
        Busy: 503,
        StateError: 503,
    }
    for kind, status in statuses.items():

        def explain(_: Request, error: Exception, status: int = status) -> JSONResponse:
            assert isinstance(error, DBLogError)
            return problem(status, error.message, error.hint, {"retry-after": "1"} if status == 503 else None)

        app.add_exception_handler(kind, explain)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        return problem(422, "; ".join(wrong[:5]), "/openapi.json describes what is accepted")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == 405 and (methods := _methods(app, request.url.path)):
            headers["allow"] = ", ".join(methods)
        hint = HINTS.get(error.status_code, "/openapi.json describes what is accepted")
        return problem(error.status_code, str(error.detail), hint, headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal error", "the server's log shows the cause")


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods of a path. FastAPI itself would name only those of the first route of the path."""
    found = [routes for template, routes in app.openapi()["paths"].items() if compile_path(template)[0].match(path)]
    return [method.upper() for routes in found for method in routes]
