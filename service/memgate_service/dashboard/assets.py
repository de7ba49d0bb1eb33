"""The files in ``static/`` -> responses that browsers may cache forever.

Their URL holds a digest of all of them, so that a changed file gets a new URL, and the modules,
which import each other by relative paths, are always of the same version.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from memgate_service.http.errors import ProblemError

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: where all of them are
_PREFIX = "/ui/static"

assets = APIRouter(include_in_schema=False)


class Asset(NamedTuple):
    """A file as it is sent."""

    kind: str
    plain: bytes
    packed: bytes


class Assets(NamedTuple):
    """All files, and their digest."""

    version: str
    by_path: dict[str, Asset]

    def url(self, path: str) -> str:
        """Return the URL of a file; a page never names one that does not exist."""
        assert path in self.by_path, path
        return f"{_PREFIX}/{self.version}/{path}"


@cache
def load_assets() -> Assets:
    """Read the files."""
    found = dict(sorted(_walk(files("memgate_service.dashboard") / "static", "").items()))
    digest = hashlib.sha256()
    for path, asset in found.items():
        digest.update(path.encode() + b"\0" + asset.plain + b"\0")
    return Assets(digest.hexdigest()[:16], found)


def _walk(folder: Traversable, prefix: str) -> dict[str, Asset]:
    found: dict[str, Asset] = {}
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found |= _walk(entry, f"{path}/")
        elif (ending := f".{entry.name.rpartition('.')[2]}") in _KINDS:
            plain = entry.read_bytes()
            found[path] = Asset(_KINDS[ending], plain, gzip.compress(plain, mtime=0))
    return found


@assets.get(f"{_PREFIX}/{{version}}/{{path:path}}")
async def read_asset(request: Request, version: str, path: str) -> Response:
    """Return a file."""
    known = load_assets()
    asset = known.by_path.get(path)
    if asset is None or version != known.version:
        raise ProblemError(404, "there is no such file in this version: load the page again")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, media_type=asset.kind, headers=headers)
    return Response(asset.plain, media_type=asset.kind, headers=headers)
