"""Which server is asked, and with which key: as the caller says, or the environment."""

from __future__ import annotations

import os

from memgate.errors import InputError


def find_server(url: str | None, api_key: str | None) -> tuple[str, dict[str, str]]:
    """Return the server's address and the key to send it: ``MEMGATE_URL`` and ``MEMGATE_API_KEY``.

    Raises:
        InputError: if no address is given.
    """
    url = url or os.environ.get("MEMGATE_URL")
    if not url:
        raise InputError("no server is named: give its URL, or set MEMGATE_URL")
    if not url.startswith(("http://", "https://")):
        raise InputError(f"server {url!r}: a URL begins with http:// or https://")
    key = api_key or os.environ.get("MEMGATE_API_KEY")
    return url, {"Authorization": f"Bearer {key}"} if key else {}
