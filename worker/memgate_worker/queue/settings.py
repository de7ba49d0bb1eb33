"""What the operator sets for every program that uses the queue: ``MEMGATE_*`` variables."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from memgate.errors import OwnGpusError
from memgate.mistakes import Mistake, RuleError
from memgate.units import MIB
from memgate.validation import explain_errors
from memgate_worker.own_gpus import load_own_gpus
from memgate_worker.queue.connecting import SentinelAddress
from memgate_worker.queue.variables import find_unknown_variables

#: of ``replicas``: there are some, and they cannot confirm
UNCONFIRMED = "unconfirmed"


class Settings(BaseSettings):
    """What programs read when they start."""

    model_config = SettingsConfigDict(env_prefix="MEMGATE_")

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment, or end the program with a sentence for each wrong variable.

        Variables that look like settings but are not are named on standard error.
        """
        for mistake in find_unknown_variables(os.environ):
            print(f"memgate: {mistake.sentence}", file=sys.stderr)  # noqa: T201  no logs yet
        try:
            load_own_gpus()  # settings may name them
            return cls()
        except OwnGpusError as error:
            sys.exit(error.message)
        except ValidationError as error:
            mistakes = explain_errors(error.errors(include_url=False), cls, secret={"redis_url"})
            sys.exit("\n".join(map(_name_variable, mistakes)))


def _name_variable(mistake: Mistake) -> str:
    if not mistake.field:  # the rule is about several, and names them
        return mistake.rule
    name, dot, rest = mistake.field.partition(".")
    return replace(mistake, field=f"MEMGATE_{name.upper()}{dot}{rest}").sentence


class QueueSettings(Settings):
    """Where the queue is, and what it may hold. The same for service and workers."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis or Valkey; ``MEMGATE_REDIS_URL``. All machines that share it form one memgate."""

    replicas: str = "auto"
    """How many replicas of that server must have a question before it counts as accepted;
    ``MEMGATE_REPLICAS``. ``auto``: 1 with Sentinel, otherwise none. ``unconfirmed``: the server
    fails over by itself and cannot confirm, so what it has just accepted may be lost."""

    public_url: str = ""
    """Where people reach the service, for the links in answers: ``https://memgate.example``;
    ``MEMGATE_PUBLIC_URL``. Without it a link is a path on the service."""

    result_ttl_seconds: Annotated[int, Field(ge=60)] = 7 * 24 * 3600
    """How long answers are kept; ``MEMGATE_RESULT_TTL_SECONDS``."""

    trace_ttl_seconds: Annotated[int, Field(ge=60)] = 3600
    """How long uploaded traces are kept that no question is about;
    ``MEMGATE_TRACE_TTL_SECONDS``."""

    max_jobs: Annotated[int, Field(ge=1)] = 100_000
    """How many jobs are remembered, and how many questions about them, the newest;
    ``MEMGATE_MAX_JOBS``."""

    max_jobs_each: Annotated[int, Field(ge=1)] = 25_000
    """How many questions of one key or user are remembered, the newest;
    ``MEMGATE_MAX_JOBS_EACH``."""

    max_queued: Annotated[int, Field(ge=1)] = 10_000
    """How many jobs may wait; ``MEMGATE_MAX_QUEUED``."""

    max_timelines_bytes: Annotated[int, Field(ge=1)] = 512 * MIB
    """How much the cache of timelines, and of the curves that pages show, may hold;
    ``MEMGATE_MAX_TIMELINES_BYTES``."""

    max_queued_each: Annotated[int, Field(ge=1)] = 2_500
    """How many of them may be of one caller: an API key, or a namespace of Kubernetes;
    ``MEMGATE_MAX_QUEUED_EACH``."""

    max_uploads_bytes: Annotated[int, Field(ge=1024)] = 1024 * MIB
    """How much uploads may take together while they are kept; ``MEMGATE_MAX_UPLOADS_BYTES``."""

    max_uploads_bytes_each: Annotated[int, Field(ge=1024)] = 512 * MIB
    """How much of that may be of one caller; ``MEMGATE_MAX_UPLOADS_BYTES_EACH``."""

    audit_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """How long the records of gates' decisions are kept; ``MEMGATE_AUDIT_DAYS``."""

    audit_max: Annotated[int, Field(ge=1)] = 500_000
    """How many of them are kept, the newest; ``MEMGATE_AUDIT_MAX``."""

    lease_seconds: Annotated[float, Field(ge=1)] = 10.0
    """A worker that is silent for this long is lost, and its job goes to another;
    ``MEMGATE_LEASE_SECONDS``."""

    max_attempts: Annotated[int, Field(ge=1)] = 5
    """How many workers may be lost on one job before it counts as failed;
    ``MEMGATE_MAX_ATTEMPTS``."""

    @property
    def num_replicas(self) -> int:
        """How many replicas must confirm a question."""
        if self.replicas == "auto":
            return int(SentinelAddress.parse(self.redis_url) is not None)
        return 0 if self.replicas == UNCONFIRMED else int(self.replicas)

    @field_validator("replicas")
    @classmethod
    def _are_replicas(cls, text: str) -> str:
        if text not in ("auto", UNCONFIRMED) and not re.fullmatch("[0-9]", text):
            raise RuleError("write 'auto', a number from 0 to 9, or 'unconfirmed'")
        return text

    @field_validator("public_url")
    @classmethod
    def _is_a_public_url(cls, url: str) -> str:
        address = urlsplit(url)
        if url and (address.scheme not in ("http", "https") or not address.hostname):
            raise RuleError("write it as https://memgate.example: http or https, and a host")
        if address.username is not None:
            raise RuleError("everybody sees it: no user name, no password")
        if address.query or address.fragment or url.endswith("/"):
            raise RuleError("paths of pages are added to it: no '/' at its end, no '?', no '#'")
        return url

    @field_validator("redis_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        is_sentinel = SentinelAddress.parse(url) is not None
        if not is_sentinel and not url.startswith(("redis://", "rediss://", "unix://")):
            # Not the value: it may hold a password.
            raise RuleError(
                "it must begin with redis://, rediss:// (TLS), unix:// (a socket) or"
                " redis+sentinel://, rediss+sentinel:// (the primary that Sentinels name)"
            )
        return url
