"""``/ui/sign-in`` and ``/ui/sign-out``: a session in exchange for a key, and its end."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from memgate_service.dashboard.rendering import render
from memgate_service.dashboard.viewers import COOKIE, SESSION_SECONDS, Viewers, refuse_other_origins

sign_in = APIRouter(include_in_schema=False)

#: where to go after signing in
Next = Annotated[str, Query(max_length=2000)]


@sign_in.get("/ui/sign-in")
async def read_sign_in(request: Request, next: Next = "/") -> Response:
    """Ask for a key, unless none is needed."""
    viewers: Viewers = request.app.state.viewers
    if await viewers.find(request) is not None:
        return RedirectResponse(_local(next), 303)
    return render(request, "sign_in.html", None, next=_local(next), is_wrong=False)


@sign_in.post("/ui/sign-in")
async def create_session(request: Request) -> Response:
    """Take a key, and give a cookie in return."""
    refuse_other_origins(request)
    viewers: Viewers = request.app.state.viewers
    address = request.client.host if request.client else ""
    viewers.refuse_guesses(address)
    async with request.form(max_files=0, max_fields=2) as form:
        shown, asked = str(form.get("key", "")), _local(str(form.get("next", "/")))
    token = await anyio.to_thread.run_sync(viewers.open, shown)
    if token is None:
        viewers.note_guess(address)
        return render(request, "sign_in.html", None, status=401, next=asked, is_wrong=True)
    answer = RedirectResponse(asked, 303)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@sign_in.get("/ui/session")
async def read_session(request: Request) -> Response:
    """Return whether there is a session; the sign-in page asks for it."""
    viewers: Viewers = request.app.state.viewers
    return JSONResponse({"is_signed_in": await viewers.find(request) is not None})


@sign_in.post("/ui/sign-out")
async def end_session(request: Request) -> Response:
    """End a session, here and in the store."""
    refuse_other_origins(request)
    viewers: Viewers = request.app.state.viewers
    if token := request.cookies.get(COOKIE):
        await anyio.to_thread.run_sync(viewers.close, token)
    answer = RedirectResponse("/ui/sign-in", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(path: str) -> str:
    """Return a path on this server; the overview instead of anything that leads elsewhere."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() else "/"
