"""``/ui/glossary``: what the words of an answer mean."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from memgate.glossary import GLOSSARY
from memgate_service.dashboard.rendering import render
from memgate_service.dashboard.viewers import PageViewer

glossary_page = APIRouter(include_in_schema=False, prefix="/ui/glossary")


@glossary_page.get("")
def read_page(request: Request, viewer: PageViewer) -> Response:
    """Return every word with its meaning."""
    return render(request, "glossary.html", viewer, glossary=GLOSSARY)
