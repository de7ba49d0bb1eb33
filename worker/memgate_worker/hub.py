"""The name of a model that our table does not have -> its ``config.json`` at a hub, if allowed.

The operator allows it by naming an endpoint, ``MEMGATE_HUB``. Only that one file is asked for,
never weights and never code: a model that is published with code of its own is refused. The spec
that leaves here has the class and the configuration in it, so what is run, and the key under which
it is kept, does not depend on the hub any more; the process that builds the model has no network.

No redirect leaves the endpoint's host, and a name is an owner and a name, nothing with which a
request could be sent elsewhere.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin, urlsplit

from memgate.errors import (
    HubUnreachableError,
    InputError,
    MissingExtraError,
    OperatorError,
    UnsupportedJobError,
)
from memgate.jobspec import JobSpec, ModelSource, ModelSpec, find_architecture
from memgate.mistakes import Mistake, RuleError, show_value
from memgate.report import Reason
from memgate_worker.engines.traced import TracedJob
from memgate_worker.jobs.public import find_public_model

if TYPE_CHECKING:
    import httpx2

#: an owner and a name, as hubs take them
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)

MAX_BYTES = 256 * 1024
_SECONDS = 10.0
_MAX_REDIRECTS = 3

#: how long a configuration is kept: they hardly ever change
KEPT_SECONDS = 24 * 3600

#: the hub has no such model, or shows it only to those who have agreed to something
_NOT_SHOWN = (401, 403, 404)

#: a name for each class a model can tell apart; a thousand of them say no more than their number
_LABELS = ("id2label", "label2id")


def check_endpoint(url: str) -> str:
    """Return the address of a hub without a slash at its end; empty if there is none.

    Raises:
        RuleError: if it is not one.
    """
    address = urlsplit(url)
    if url and (address.scheme not in ("http", "https") or not address.hostname):
        raise RuleError("write it as https://huggingface.co: http or https, and a host")
    if address.username is not None or address.query or address.fragment:
        raise RuleError("names of models are added to it: no user name, no '?', no '#'")
    return url.rstrip("/")


class ConfigCache(Protocol):
    """Keeps what a hub said."""

    def load_config(self, name: str) -> str | None:
        """Return what is kept under a name."""

    def save_config(self, name: str, text: str, seconds: int) -> None:
        """Keep a text for some time."""


class MemoryCache:
    """Keeps it as long as this process lives."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, str]] = {}

    def load_config(self, name: str) -> str | None:
        """Return what is kept under a name."""
        until, text = self._kept.get(name, (0.0, ""))
        return text if time.monotonic() < until else None

    def save_config(self, name: str, text: str, seconds: int) -> None:
        """Keep a text for some time."""
        self._kept[name] = (time.monotonic() + seconds, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """A job whose model is described in full, and what is to be said about where that is from."""

    job: JobSpec
    note: Reason | None = None

    def mark(self, traced: TracedJob) -> TracedJob:
        """Say in an answer where the model's configuration is from."""
        if self.note is None:
            return traced
        note = self.note
        return traced.of_every_rank(lambda one: replace(one, notes=(*one.notes, note)))


class ModelHub:
    """Looks configurations up at an endpoint; with an empty one, nothing is looked up."""

    def __init__(
        self,
        endpoint: str,
        cache: ConfigCache,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._endpoint = check_endpoint(endpoint)
        self._cache = cache
        self._now = now

    def complete(self, job: JobSpec) -> LookedUp:
        """Put the configuration of a model that our table does not have into a job.

        Raises:
            InputError: if the hub does not have it either, or it names no class.
            UnsupportedJobError: if it is published with code of its own, or is too long.
            HubUnreachableError: if the hub does not answer.
            OperatorError: if the endpoint is not that of a hub.
        """
        model = job.model
        if not self._endpoint or model.source is not ModelSource.TRANSFORMERS or not model.name:
            return LookedUp(job=job)
        try:
            find_public_model(model.name)
        except InputError as unknown:
            if not _NAME.fullmatch(model.name):
                raise  # with what the table has that is like it
            config, at = self._find(model.name, unknown)
            note = Reason(
                code="LOOKED_UP",
                message=f"the configuration of {model.name} is from {self._endpoint}, {at}",
            )
            filled = _fill(model, config)
            return LookedUp(job=job.model_copy(update={"model": filled}), note=note)
        return LookedUp(job=job)

    def _find(self, name: str, unknown: InputError) -> tuple[dict[str, Any], str]:
        """Return a configuration, and when it was looked up."""
        place = f"{self._endpoint}/{name}"
        kept = self._cache.load_config(place)
        if kept is not None:
            said = json.loads(kept)
            return said["config"], said["at"]
        text = self._fetch(f"{place}/resolve/main/config.json", name, unknown)
        config, at = _read_config(text, name), self._now().isoformat(timespec="seconds")
        self._cache.save_config(place, json.dumps({"config": config, "at": at}), KEPT_SECONDS)
        return config, at

    def _fetch(self, url: str, name: str, unknown: InputError) -> bytes:
        try:
            import httpx2
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("MEMGATE_HUB", error, extra="worker") from None
        deadline = time.monotonic() + _SECONDS
        try:
            with httpx2.Client(timeout=_SECONDS, follow_redirects=False) as client:
                for _ in range(_MAX_REDIRECTS + 1):
                    with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as said:
                        if not said.is_redirect:
                            return self._read(said, name, unknown, deadline)
                        url = self._follow(url, said.headers.get("location", ""))
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise self._unreachable(name, type(error).__name__) from None
        raise OperatorError(f"MEMGATE_HUB: {self._endpoint} redirects in a circle")

    def _follow(self, url: str, location: str) -> str:
        """Return where a redirect leads, if that is on the same host."""
        target = urljoin(url, location)
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            raise OperatorError(
                f"MEMGATE_HUB: {self._endpoint} redirects to {urlsplit(target).netloc}, and only"
                " its own host is asked; set MEMGATE_HUB to the address it redirects to"
            )
        return target

    def _read(
        self, said: httpx2.Response, name: str, unknown: InputError, deadline: float
    ) -> bytes:
        if said.status_code in _NOT_SHOWN:
            raise self._not_there(name, said.status_code, unknown)
        if said.status_code >= 500 or said.status_code == 429:
            raise self._unreachable(name, f"status {said.status_code}")
        if said.status_code != 200:
            raise OperatorError(
                f"MEMGATE_HUB: {self._endpoint} answers with status {said.status_code}; it must be"
                " the address of a Hugging Face hub or of a mirror"
            )
        content = bytearray()
        for part in said.iter_raw():
            content += part
            if len(content) > MAX_BYTES:
                raise _unusable(name, f"its config.json has more than {MAX_BYTES:,} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
        return bytes(content)

    def _unreachable(self, name: str, why: str) -> HubUnreachableError:
        return HubUnreachableError(
            f"{self._endpoint} (MEMGATE_HUB) did not give the configuration of {name} ({why}),"
            " which says nothing about the job; ask again, or give 'class' and 'config' instead of"
            " 'name'"
        )

    def _not_there(self, name: str, status: int, unknown: InputError) -> InputError:
        shown = f"{self._endpoint} has no such model, or does not show it to everybody ({status})"
        (mistake,) = unknown.mistakes
        return InputError.from_mistakes(replace(mistake, rule=f"{mistake.rule}, and {shown}"))


def _read_config(text: bytes, name: str) -> dict[str, Any]:
    """Read a configuration as it is published, without the names of its labels."""
    try:
        config = json.loads(text)
    except ValueError:  # not UTF-8, or not JSON
        config = None
    if not isinstance(config, dict):
        raise _unusable(name, "its config.json is not a JSON object")
    if config.get("auto_map"):
        raise _unusable(name, "it is published with code of its own, which is never loaded")
    labels = config.get(_LABELS[0])
    if isinstance(labels, dict):
        config["num_labels"] = len(labels)
    return {key: value for key, value in config.items() if key not in _LABELS}


def _fill(model: ModelSpec, config: dict[str, Any]) -> ModelSpec:
    """Return a model with its class and configuration instead of its name."""
    found = model.architecture or find_architecture(config)
    if found is None:
        raise InputError.from_mistakes(
            Mistake(
                field="model.name",
                value=show_value(model.name),
                rule="its config.json names no class ('architectures')",
                next_step="give 'class' and 'config' instead of 'name'",
            )
        )
    document = {"source": model.source, "class": found, "config": config | model.config}
    return ModelSpec.model_validate(document)


def _unusable(name: str, why: str) -> UnsupportedJobError:
    return UnsupportedJobError.from_mistakes(
        Mistake(
            field="model.name",
            value=show_value(name),
            rule=why,
            next_step="give 'class' and 'config' instead of 'name', if transformers has the class",
        )
    )
