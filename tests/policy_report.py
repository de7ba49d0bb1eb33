"""What the kind PolicyReport (wgpolicyk8s.io, v1alpha2 and v1beta1) takes, as its own schema says.

Written down from its public definition, so that an API server drops and refuses what that would:
types, required fields, and the words that a result may be. Texts and formats are left out.
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_WORDS = ["pass", "fail", "warn", "error", "skip"]
_REFERENCE = {
    "type": "object",
    "properties": dict.fromkeys(
        ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"), _TEXT
    ),
}
_RESULT = {
    "type": "object",
    "required": ["policy"],
    "properties": {
        **dict.fromkeys(("category", "message", "policy", "rule", "source"), _TEXT),
        "properties": {"type": "object", "additionalProperties": _TEXT},
        "resources": {"type": "array", "items": _REFERENCE},
        "result": {"type": "string", "enum": _WORDS},
        "scored": {"type": "boolean"},
        "severity": {"type": "string", "enum": ["critical", "high", "medium", "low", "info"]},
        "timestamp": {
            "type": "object",
            "required": ["nanos", "seconds"],
            "properties": {"nanos": _NUMBER, "seconds": _NUMBER},
        },
    },
}

#: the schemas of its fields
FIELDS: dict[str, Any] = {
    "results": {"type": "array", "items": _RESULT},
    "scope": _REFERENCE,
    "summary": {"type": "object", "properties": dict.fromkeys(_WORDS, _NUMBER)},
}
