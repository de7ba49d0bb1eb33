"""The OpenAPI document: what FastAPI finds out itself, and the bodies that handlers read."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memgate.audit import AuditBatch
from memgate.schemas import (
    ADVICE_HEADER,
    PENDING,
    Accepted,
    EstimateCreate,
    FitCreate,
    OutcomeCreate,
    Problem,
    TimelineFitCreate,
    TraceEstimateCreate,
)
from memgate_service.admission.kubernetes.review import ReviewRequest, ReviewResponse
from memgate_service.http.bodies import JSON, MULTIPART
from memgate_service.http.descriptions import describe_fields
from memgate_service.settings import ServiceSettings

Responses = dict[int | str, dict[str, Any]]

#: bodies that handlers read themselves
_BODIES: tuple[type[BaseModel], ...] = (
    AuditBatch,
    EstimateCreate,
    FitCreate,
    OutcomeCreate,
    TimelineFitCreate,
    TraceEstimateCreate,
)


_EXAMPLE_REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "team",
        "object": {
            "metadata": {
                "name": "train",
                "annotations": {
                    "memgate.dev/job": "{model: {source: torchvision, name: resnet50},"
                    " input: {shape: [3, 224, 224]}, batch_size: 32}"
                },
            },
            "spec": {
                "nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"},
                "containers": [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
            },
        },
    },
}


def _problems(texts: dict[int, str]) -> Responses:
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


#: the errors that any request may get
PROBLEMS = _problems(
    {
        401: "No key, or not a valid one.",
        403: "The key's role may not do this.",
        408: "The request took too long to come in.",
        413: "The request is too long.",
        422: "Something in the question is wrong (`caller`; the problem names the field, the value"
        " and the rule), the job itself fails (`job`), or memgate cannot run this kind of job"
        " (`unsupported`): `fault` says which.",
        429: "Too many requests, or too many waiting jobs; `Retry-After` says when to retry.",
        500: "memgate failed: our fault.",
        503: "With `Retry-After`, ask again (`passing`): the queue cannot be reached, workers were"
        " lost, or too many clients wait. Without it, the operator must install or configure"
        " something (`operator`).",
    }
)
NOT_FOUND = _problems({404: "There is no such job, or it ended long ago."})
WRONG_TYPE = _problems({415: "A content type that is not accepted here, or a compressed request."})
CANCELED = _problems({409: "Somebody canceled the job that would have answered."})

_LOCATION = {
    "Location": {"description": "The job.", "required": True, "schema": {"type": "string"}}
}
_ADVICE = {
    ADVICE_HEADER: {
        "description": "The answer stands; a worker is looking for a batch that fits, to add it:"
        " `GET` the job with `Prefer: wait=N` to wait for that.",
        "schema": {"type": "string", "enum": [PENDING]},
    }
}
ACCEPTED: Responses = {
    200: {"description": "The answer.", "headers": _LOCATION | _ADVICE},
    202: {
        "model": Accepted,
        "description": "Not answered yet: `Location` says where it will be.",
        "headers": _LOCATION,
    },
}


#: the files that questions take, by the name of their part, and what each is
_FILES = {
    "trace": "What torch.profiler exported, .json or .json.gz.",
    "snapshot": "What torch.cuda.memory._dump_snapshot wrote, plain or gzip.",
    "timeline": "What `memgate run -o FILE` or `memgate estimate -o FILE` recorded.",
}
UPLOAD_PARTS = tuple(_FILES)
TIMELINE_PARTS = ("timeline",)


def body_of(
    model: type[BaseModel],
    *,
    upload: type[BaseModel] | None = None,
    parts: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Describe a body that the handler reads itself; ``parts`` are the files that it may have."""
    content: dict[str, Any] = {JSON: {"schema": _reference(model)}}
    if upload is not None:
        content[MULTIPART] = {
            "schema": {
                "type": "object",
                "required": ["request"],
                "description": f"One file: {', '.join(parts)}.",
                "properties": {"request": _reference(upload)}
                | {
                    part: {"type": "string", "format": "binary", "description": _FILES[part]}
                    for part in parts
                },
            },
            "encoding": {"request": {"contentType": JSON}},
        }
    return {"requestBody": {"required": True, "content": content}}


def review_bodies() -> dict[str, Any]:
    """Describe an AdmissionReview, request and response."""
    said = {JSON: {"schema": _reference(ReviewResponse)}}
    return {
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": _reference(ReviewRequest)}},
        },
        "responses": {"200": {"description": "What happens to the object.", "content": said}},
    }


def _reference(model: type[BaseModel | msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def describe(app: FastAPI, settings: ServiceSettings) -> None:
    """Complete the document when it is first requested."""
    made_by_framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made_by_framework()
            _add_bodies(document)
            for methods in document["paths"].values():
                for operation in methods.values():
                    _complete(operation, needs_keys=settings.needs_keys)
            if settings.needs_keys:
                scheme = {"type": "http", "scheme": "bearer"}
                document["components"]["securitySchemes"] = {"key": scheme}
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_bodies(document: dict[str, Any]) -> None:
    _, schemas = models_json_schema(
        [(model, "validation") for model in _BODIES], ref_template="#/components/schemas/{model}"
    )
    known = document["components"]["schemas"]
    _, reviews = msgspec.json.schema_components(
        [ReviewRequest, ReviewResponse], ref_template="#/components/schemas/{name}"
    )
    reviews["ReviewRequest"]["examples"] = [_EXAMPLE_REVIEW]
    known.update(reviews)
    for name, schema in schemas["$defs"].items():
        known.setdefault(name, schema)
    describe_fields(known)


def _complete(operation: dict[str, Any], *, needs_keys: bool) -> None:
    """Say that problems are problem documents, and where keys are needed."""
    responses = operation["responses"]
    if "401" in responses:
        if needs_keys:
            operation["security"] = [{"key": []}]
        else:
            del responses["401"], responses["403"]
    for status, response in responses.items():
        if int(status) >= 400 and "content" in response:
            (content,) = response["content"].values()
            response["content"] = {"application/problem+json": content}
