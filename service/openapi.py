"""The OpenAPI document: what FastAPI finds out by itself, and the bodies that handlers read."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.schemas import EstimateCreate, FitCreate, TraceEstimateCreate

_BODIES: tuple[type[BaseModel], ...] = (EstimateCreate, FitCreate, TraceEstimateCreate)


def describe(app: FastAPI) -> None:
    """Add the bodies to the document when it is first asked for."""
    made_by_framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made_by_framework()
            _, schemas = models_json_schema(
                [(model, "validation") for model in _BODIES],
                ref_template="#/components/schemas/{model}",
            )
            known = document["components"]["schemas"]
            for name, schema in schemas["$defs"].items():
                known.setdefault(name, schema)
            document["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"}
            }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
