"""A text that somebody wrote -> a job spec: JSON or YAML, from a file, a page or an annotation."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from memgate.errors import InputError
from memgate.jobspec import JobSpec, parse_job_spec

#: a spec is a few hundred bytes, a configuration of a model a few thousand
_MAX_LENGTH = 1 << 18

#: YAML takes a second for 50,000 characters, in which nobody else is answered; JSON a millisecond
_MAX_YAML = 1 << 14


class _WithoutAliases(yaml.SafeLoader):
    """YAML as people write it. A few lines of aliases of aliases would else fill the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a part of the document."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)


def read_job_text(text: str) -> JobSpec:
    """Check a spec.

    Raises:
        InputError: if it is none, with the place, or the field and the rule.
    """
    if len(text) > _MAX_LENGTH:
        raise InputError(f"a job spec may have {_MAX_LENGTH} characters, and this has {len(text)}")
    return parse_job_spec(_document(text))


def _document(text: str) -> object:
    try:
        return msgspec.json.decode(text)  # much faster than YAML, of which it is a part
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    if len(text) > _MAX_YAML:
        raise InputError(
            f"this is not JSON, and as YAML a job spec may have {_MAX_YAML} characters; it has"
            f" {len(text)}"
        )
    try:
        document = yaml.load(text, _WithoutAliases)
        json.dumps(document, allow_nan=False)  # it goes through a queue as JSON
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"neither JSON nor YAML: {error.problem}{place}") from None
    except yaml.YAMLError as error:
        raise InputError(f"neither JSON nor YAML: {error}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a job spec holds what JSON can hold: {error}") from None
    return document
