"""What the operator sets for the service: ``MEMGATE_*`` variables, listed in docs/operations.md."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from limits import RateLimitItem, parse
from pydantic import Field, field_validator, model_validator

from memgate.units import MIB
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_worker.queue.settings import QueueSettings


class ServiceSettings(AdmissionSettings, QueueSettings):
    """Where the service listens, whom it lets in and how much it accepts."""

    host: str = "127.0.0.1"
    """Address to listen on; ``MEMGATE_HOST``."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; ``MEMGATE_PORT``. 0: any that is free; the log says which."""

    listen_fd: Annotated[int, Field(ge=3)] | None = None
    """Number of an open socket to listen on, instead of a host and port;
    ``MEMGATE_LISTEN_FD``. ``memgate up`` and systemd's socket units hand one over."""

    serve: Literal["all", "webhooks"] = "all"
    """``webhooks``: only those of Kubernetes, and without keys, since an API server sends none; let
    nobody else reach it. ``MEMGATE_SERVE``."""

    api_keys: Literal["auto", "required", "off"] = "auto"
    """Whether callers need a key; ``MEMGATE_API_KEYS``. ``auto``: unless it listens on loopback."""

    allowed_hosts: str = ""
    """Host names, comma-separated, that requests may use while no keys are needed, besides those of
    this machine; ``MEMGATE_ALLOWED_HOSTS``. For a proxy that authenticates callers itself."""

    tls_certificate: Path | None = None
    """File with the certificate chain, PEM; ``MEMGATE_TLS_CERTIFICATE``."""

    tls_key: Path | None = None
    """File with its private key, PEM; ``MEMGATE_TLS_KEY``."""

    rate_limit: str = "1200/minute"
    """What a key may ask for; ``MEMGATE_RATE_LIMIT``. Nothing is limited where keys are off."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = MIB
    """The longest request that is not an upload; ``MEMGATE_MAX_BODY_BYTES``."""

    max_upload_bytes: Annotated[int, Field(ge=1024)] = 256 * MIB
    """The longest upload, compressed or not; ``MEMGATE_MAX_UPLOAD_BYTES``."""

    body_timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """How long a client may take to send a request; ``MEMGATE_BODY_TIMEOUT_SECONDS``."""

    max_wait_seconds: Annotated[float, Field(ge=0)] = 60.0
    """The longest that ``Prefer: wait`` may ask for; ``MEMGATE_MAX_WAIT_SECONDS``."""

    max_waiting: Annotated[int, Field(ge=0)] = 512
    """How many clients may wait at the same time; ``MEMGATE_MAX_WAITING``."""

    max_waiting_each: Annotated[int, Field(ge=0)] = 128
    """How many of them may be of one key; ``MEMGATE_MAX_WAITING_EACH``."""

    link_days: Annotated[float, Field(ge=0)] = 7.0
    """How long the page that a gate prints opens, to look at only, for whoever has its link; 0: not
    at all; ``MEMGATE_LINK_DAYS``."""

    max_viewers: Annotated[int, Field(ge=0)] = 64
    """How many pages may be live at the same time; ``MEMGATE_MAX_VIEWERS``."""

    @property
    def needs_keys(self) -> bool:
        """Callers must send a key."""
        return self.serve == "all" and self._asks_for_keys

    @property
    def _asks_for_keys(self) -> bool:
        return self.api_keys == "required" or (
            self.api_keys == "auto" and not _is_loopback(self.host)
        )

    @property
    def rate(self) -> RateLimitItem:
        """What a key may ask for."""
        return parse(self.rate_limit)

    @field_validator("rate_limit")
    @classmethod
    def _is_a_rate(cls, text: str) -> str:
        try:
            parse(text)
        except ValueError:
            raise ValueError("write it as '1200/minute' or '10 per second'") from None
        return text

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if self.api_keys == "off" and not _is_loopback(self.host):
            raise ValueError(f"keys may be off on loopback only, and this listens on {self.host}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("give both MEMGATE_TLS_CERTIFICATE and MEMGATE_TLS_KEY, or neither")
        return self


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
