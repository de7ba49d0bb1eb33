"""Bytes kept for service and workers: timelines of runs, and memory curves.

They share a cache of bounded size; ``uploads`` has what callers send. Their content is not read
here: ``timelines`` turns a run into bytes and back.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from memgate_worker.queue import scripts
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.uploads import UPLOAD_SHARES as UPLOAD_SHARES
from memgate_worker.queue.uploads import UploadStore, is_damaged
from memgate_worker.queue.uploads import redis_key as redis_key

#: timelines and views by when they were last used, their sizes, and the sum of these
_TIMELINES = ["memgate:timelines", "memgate:timelines:sizes", "memgate:timelines:total"]


class BlobStore(UploadStore):
    """Bytes by name."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._cache = redis.register_script(scripts.CACHE)
        self._look_up = redis.register_script(scripts.LOOK_UP)

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
            if not is_damaged(error):
                raise
            self.redis.delete(*_TIMELINES)  # start a new index; what is in no index expires
            self._cache(keys=_TIMELINES, args=args)

    def load_timeline(self, name: str) -> bytes | None:
        """Return a timeline, if it is stored."""
        args: list[Any] = [name, time.time(), redis_key("timeline", "")]
        try:
            packed = self._look_up(keys=_TIMELINES, args=args)
        except ResponseError as error:
            if not is_damaged(error):
                raise
            return None
        return None if packed is None else bytes(packed)

    def has_timeline(self, name: str) -> bool:
        """Return whether a timeline is stored."""
        return bool(self.redis.exists(redis_key("timeline", name)))

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
