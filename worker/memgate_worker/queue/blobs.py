"""Bytes kept for service and workers: timelines of runs, memory curves, traces.

Timelines and curves share a cache of bounded size; traces expire, and what they take together is
bounded, too. Their content is not read here:
``timelines`` turns a run into bytes and back.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from memgate.contract import UploadsFullError
from memgate.units import format_size
from memgate_worker.queue import scripts
from memgate_worker.queue.settings import QueueSettings

#: timelines and views by when they were last used, their sizes, and the sum of these
_TIMELINES = ["memgate:timelines", "memgate:timelines:sizes", "memgate:timelines:total"]

#: how much is kept of each caller's uploads
UPLOAD_SHARES = "memgate:traces:shares"

#: uploads by when they expire, their sizes, the sum of these, whose each is, and shares
_UPLOADS = [
    *("memgate:traces", "memgate:traces:sizes", "memgate:traces:total"),
    *("memgate:traces:callers", UPLOAD_SHARES),
]


def redis_key(kind: str, name: str) -> str:
    """Return the name under which something is stored."""
    return f"memgate:{kind}:{name}"


class BlobStore:
    """Bytes by name."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        #: Any: redis-py types each answer as one that may have to be awaited
        self.redis: Any = redis
        self._settings = settings
        self._cache = redis.register_script(scripts.CACHE)
        self._look_up = redis.register_script(scripts.LOOK_UP)
        self._reserve = redis.register_script(scripts.RESERVE)

    # --- configurations of models, as a hub gave them

    def save_config(self, name: str, text: str, seconds: int) -> None:
        """Keep a configuration for some time."""
        self.redis.set(redis_key("config", name), text, ex=seconds)

    def load_config(self, name: str) -> str | None:
        """Return a configuration, if it is stored."""
        text = self.redis.get(redis_key("config", name))
        return None if text is None else text.decode()

    # --- timelines

    def save_timeline(self, name: str, packed: bytes) -> None:
        """Keep a timeline; the least recently used ones are dropped if there are too many."""
        settings = self._settings
        ttl, most = settings.result_ttl_seconds, settings.max_timelines_bytes
        args: list[Any] = [name, packed, time.time(), ttl, most, redis_key("timeline", "")]
        try:
            self._cache(keys=_TIMELINES, args=args)
        except ResponseError as error:
            if not _is_damaged(error):
                raise
            self.redis.delete(*_TIMELINES)  # start a new index; what is in no index expires
            self._cache(keys=_TIMELINES, args=args)

    def load_timeline(self, name: str) -> bytes | None:
        """Return a timeline, if it is stored."""
        args: list[Any] = [name, time.time(), redis_key("timeline", "")]
        try:
            packed = self._look_up(keys=_TIMELINES, args=args)
        except ResponseError as error:
            if not _is_damaged(error):
                raise
            return None
        return None if packed is None else bytes(packed)

    def has_timeline(self, name: str) -> bool:
        """Return whether a timeline is stored."""
        return bool(self.redis.exists(redis_key("timeline", name)))

    # --- traces

    def save_trace(self, data: bytes, caller: str = "") -> str:
        """Keep a caller's upload for a while; return the digest that names it.

        Raises:
            UploadsFullError: if there is no room for it, or not for more of the caller's.
        """
        name = hashlib.sha256(data).hexdigest()
        ttl, most = self._settings.trace_ttl_seconds, self._settings.max_uploads_bytes
        most_each = min(most, self._settings.max_uploads_bytes_each) if caller else most
        args: list[Any] = [name, len(data), time.time(), ttl, most, caller, most_each]
        try:
            has_room = self._reserve(keys=_UPLOADS, args=args)
        except ResponseError as error:
            if not _is_damaged(error):
                raise
            self.redis.delete(*_UPLOADS)  # start a new index; what is in no index expires
            has_room = self._reserve(keys=_UPLOADS, args=args)
        if has_room != 1:
            whose, most = (
                ("uploads", most) if has_room == 0 else (f"uploads of {caller}", most_each)
            )
            raise UploadsFullError(
                f"{whose} already take nearly all of the {format_size(most)} that they may take"
                f" together, and this one has {format_size(len(data))}; each is kept for"
                f" {ttl / 60:g} minutes: try again later, or send a smaller one"
            )
        self.redis.set(redis_key("trace", name), data, ex=self._settings.trace_ttl_seconds)
        return name

    def load_trace(self, name: str) -> bytes | None:
        """Return an uploaded trace, if it is still stored."""
        data = self.redis.get(redis_key("trace", name))
        return None if data is None else bytes(data)

    # --- memory curves

    def save_view(self, job_id: str, view: str) -> None:
        """Keep a job's memory curve, JSON, while there is room."""
        self.save_timeline(f"view:{job_id}", zlib.compress(view.encode(), 1))

    def load_view(self, job_id: str) -> bytes | None:
        """Return a job's memory curve, JSON, if there is one."""
        packed = self.load_timeline(f"view:{job_id}")
        try:
            return None if packed is None else zlib.decompress(packed)
        except zlib.error:  # cut off, or another version's
            return None


def _is_damaged(error: ResponseError) -> bool:
    """Say whether the index of timelines has the wrong type, or does not hold numbers."""
    return any(words in str(error) for words in ("WRONGTYPE", "not an integer"))
