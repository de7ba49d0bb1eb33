"""The page on error codes, which every service shows."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.testclient import TestClient

from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings

ERRORS = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()


def test_a_problem_leads_to_the_page_that_explains_it() -> None:
    """On the very service that was asked: its version, and no site that may not be there."""
    with TestClient(create_app(ServiceSettings(redis_url="unix:///nowhere"))) as client:
        problem = client.get("/nowhere").json()
        page = client.get(problem["type"])

    assert problem["type"] == "/docs/errors#not_found"
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert '<code id="not_found">NOT_FOUND</code>' in page.text


def test_every_code_has_a_place_on_the_page() -> None:
    """The first cell of each row in the tables of codes."""
    codes = set(re.findall(r"^\| `([A-Z_]+)`", ERRORS, re.MULTILINE))
    assert len(codes) > 40
    with TestClient(create_app(ServiceSettings(redis_url="unix:///nowhere"))) as client:
        page = client.get("/docs/errors")
        style = client.get("/docs/errors.css")

    for code in codes:
        assert page.text.count(f'id="{code.lower()}"') == 1
    assert "script" not in page.headers["content-security-policy"]
    assert style.headers["content-type"].startswith("text/css")
