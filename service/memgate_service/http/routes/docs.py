"""``GET /docs``: the OpenAPI document, to read and to try. Works without the internet.

Swagger UI comes from the package ``fastapi_offline``, of which only the files are used.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response

docs = APIRouter(include_in_schema=False)

#: Swagger UI's icons are in its style sheet
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>memgate: API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="docs">This page needs JavaScript; <a href="/openapi.json">openapi.json</a> does not.</div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

_START = """"use strict";
SwaggerUIBundle({url: "/openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null});
"""

_FILES = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}

_KEPT = {"Cache-Control": "public, max-age=86400"}


@docs.get("/docs")
async def read_docs() -> Response:
    """Return the page."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


@docs.get("/docs/start.js")
async def read_start() -> Response:
    """Return the script that starts Swagger UI; a separate file, since nothing inline may run."""
    return Response(_START, media_type="text/javascript", headers=_KEPT)


@docs.get("/docs/swagger-ui.css")
def read_style() -> Response:
    """Return Swagger UI's style sheet."""
    return _file("swagger-ui.css")


@docs.get("/docs/swagger-ui-bundle.js")
def read_script() -> Response:
    """Return Swagger UI."""
    return _file("swagger-ui-bundle.js")


def _file(name: str) -> Response:
    with as_file(files("fastapi_offline") / "static" / name) as path:
        return FileResponse(path, media_type=_FILES[name], headers=_KEPT)
