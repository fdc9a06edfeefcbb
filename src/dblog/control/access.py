"""Signing in: a browser gives the token once and gets a cookie for it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from starlette.exceptions import HTTPException

from dblog.control.guard import SESSION, address
from dblog.control.session import COOKIE, LOCAL, SESSION_SECONDS, Caller, Role, Tokens


class SignIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: StrictStr = Field(min_length=1, max_length=4000)
    name: StrictStr | None = Field(None, max_length=80, description="the name that is recorded with actions")


class Session(BaseModel):
    """Who the caller is, and what it may do."""

    role: Role
    name: str
    token: bool = Field(description="whether the server needs a token")


def caller_of(request: Request) -> Caller:
    """Who sends the request, as `guard.Gate` has found."""
    found = request.scope.get("state", {}).get("caller")
    return found if isinstance(found, Caller) else LOCAL


def _name_of(request: Request) -> str:
    return caller_of(request).name


Who = Annotated[str, Depends(_name_of)]
"""The name of the caller, for the list of actions."""


def sign_in_routes(tokens: Tokens | None) -> APIRouter:
    """The route that needs no token."""
    router = APIRouter(tags=["session"])

    @router.post(SESSION)
    def sign_in(given: SignIn, request: Request, response: Response) -> Session:
        """Sign in with a token. The answer sets a cookie for this site, which scripts cannot read."""
        if tokens is None:
            return Session(role=LOCAL.role, name=LOCAL.name, token=False)
        role = tokens.role(given.token.strip().encode(errors="replace"))
        if role is None:
            raise HTTPException(401, "this is not a token of the server", {"www-authenticate": 'Bearer realm="dblog"'})
        name = (
            "".join(c for c in (given.name or "").strip() if c.isprintable()) or f"{role} at {address(request.scope)}"
        )
        secure = request.headers.get("origin", "").startswith("https://")
        response.set_cookie(
            COOKIE,
            tokens.cookie(Caller(role, name.encode(errors="replace").decode())),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return Session(role=role, name=name, token=True)

    return router


def session_routes(tokens: Tokens | None) -> APIRouter:
    router = APIRouter(tags=["session"])

    @router.get(SESSION)
    def session(request: Request) -> Session:
        """Who the caller is."""
        caller = caller_of(request)
        return Session(role=caller.role, name=caller.name, token=tokens is not None)

    @router.delete(SESSION)
    def sign_out(request: Request, response: Response) -> Session:
        """Sign out: the cookie is removed."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        caller = caller_of(request)
        return Session(role=caller.role, name=caller.name, token=tokens is not None)

    return router
