"""The bytes of a request -> a checked document, or a refusal.

Every body is read here, not by the framework: each limit has its own status, and what is stored
later is exactly what was checked.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError

from memgate_service.http.errors import ProblemError, wrong_body, wrong_fields

JSON = "application/json"
MULTIPART = "multipart/form-data"

_Model = TypeVar("_Model", bound=BaseModel)


def content_type(request: Request) -> str:
    """Return the declared content type of a body.

    Raises:
        ProblemError: 415 if it is compressed, or not in UTF-8.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ProblemError(415, "a request may not be compressed; a trace in it may, as .json.gz")
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    name, _, charset = rest.partition("=")
    if name.strip().lower() == "charset" and charset.strip(' "').lower() not in ("utf-8", "utf8"):
        raise ProblemError(415, "send a request in UTF-8")
    return kind.strip().lower()


async def json_body(request: Request) -> bytes:
    """Return the body of a request that must be JSON, not parsed yet.

    Raises:
        ProblemError: 415 if it is declared as something else.
    """
    if content_type(request) != JSON:
        raise ProblemError(415, f"send a request as {JSON}")
    return await request.body()


def read_json(model: type[_Model], body: bytes | str) -> _Model:
    """Check a body.

    Raises:
        ProblemError: 422 if it is not JSON, or not this document; names each field.
    """
    try:
        # pydantic alone would accept NaN and 1e999 as numbers, and store them as null
        msgspec.json.decode(body, type=dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise wrong_body(f"is not a JSON object: {error}") from None
    try:
        return model.model_validate_json(body, strict=True)  # true is not a number, nor is "1"
    except ValidationError as error:
        raise wrong_fields(error.errors(include_url=False), model) from None
