"""``GET /docs/errors``: what each error code means and what to do; problem documents lead there.

The page is docs/errors.md, which is part of the wheel: it matches the version that runs.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from markdown_it import MarkdownIt

from memgate_service.http.errors import ERRORS_PATH

error_codes = APIRouter(include_in_schema=False)

_POLICY = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

_STYLE = """body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui; }
table { border-collapse: collapse; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid #8886; text-align: left; }
td { vertical-align: top; }
pre { overflow-x: auto; }
:target { background: #fd08; }
:root { color-scheme: light dark; }
"""

_KEPT = {"Cache-Control": "public, max-age=86400"}

_CODE = re.compile(r"<code>([A-Z][A-Z_]+)</code>")


@error_codes.get(ERRORS_PATH)
def read_error_codes() -> Response:
    """Return the page."""
    return HTMLResponse(_page(), headers={"Content-Security-Policy": _POLICY})


@error_codes.get(f"{ERRORS_PATH}.css")
def read_style() -> Response:
    """Return its style sheet."""
    return Response(_STYLE, media_type="text/css", headers=_KEPT)


@cache
def _page() -> str:
    body = MarkdownIt("js-default").render(_text())
    named: set[str] = set()

    def with_anchor(found: re.Match[str]) -> str:
        code = found[1].lower()
        if code in named:
            return found[0]
        named.add(code)
        return f'<code id="{code}">{found[1]}</code>'

    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<title>memgate: errors</title>\n<link rel="stylesheet" href="{ERRORS_PATH}.css">\n'
        f"</head>\n<body>\n{_CODE.sub(with_anchor, body)}</body>\n</html>\n"
    )


def _text() -> str:
    carried = files("memgate_service.http") / "errors.md"
    if carried.is_file():
        return carried.read_text(encoding="utf-8")
    return (Path(__file__).parents[4] / "docs" / "errors.md").read_text(encoding="utf-8")
