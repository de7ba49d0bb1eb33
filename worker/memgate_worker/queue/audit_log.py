"""The audit: records of what gates decided, kept apart from answers and longer. One door to it.

Records are found by time, and by each of ``INDEXED``. They are dropped by age and by number; totals
by the day stay for two years. Every key has a time to live.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from memgate.audit import AuditEntry
from memgate_worker.queue.blobs import redis_key
from memgate_worker.queue.settings import QueueSettings

#: what records can be found by
INDEXED = ("user", "account", "namespace", "partition", "decision")

_TIMES = "memgate:audit"
_SALT = "memgate:audit-salt"
_PLACES = "memgate:audit-places"

_DAY_SECONDS = 24 * 3600
#: how much longer keys live than records: whatever is written removes what is too old
_SPARE_SECONDS = 7 * _DAY_SECONDS
_TOTAL_DAYS = 731

#: places that are counted by name; users can make up names of partitions
_MAX_PLACES = 500
#: records that are read, or dropped, at once
_PIECE = 500


class Page(NamedTuple):
    """Some records, the newest first, and where to go on; empty at the end."""

    entries: list[AuditEntry]
    next: str


class AuditLog:
    """What gates decided."""

    def __init__(self, redis: Any, settings: QueueSettings) -> None:
        self._redis = redis
        self._settings = settings

    def add(self, entries: Sequence[AuditEntry]) -> int:
        """Store records; return how many are new: one that is sent twice counts once."""
        if not entries:
            return 0
        seconds = self._settings.audit_days * _DAY_SECONDS + _SPARE_SECONDS
        with self._redis.pipeline(transaction=False) as pipeline:
            for entry in entries:
                pipeline.set(_key(entry.id), entry.text(), ex=seconds, nx=True)
            is_new = pipeline.execute()
        new = [entry for entry, stored in zip(entries, is_new, strict=True) if stored]
        with self._redis.pipeline(transaction=False) as pipeline:
            for entry in new:
                for index in _indexes(entry):
                    pipeline.zadd(index, {entry.id: entry.at})
                    pipeline.expire(index, seconds)
            pipeline.execute()
        self._count(new)
        self._trim()
        return len(new)

    def _count(self, entries: Sequence[AuditEntry]) -> None:
        """Add to the totals of each day, and to the counters that metrics show."""
        places = self._known_places({_place(entry) for entry in entries})
        days: Counter[tuple[str, str]] = Counter()
        for entry in entries:
            place = _place(entry) if _place(entry) in places else "other"
            day = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d")
            label = f"{entry.gate}:{place}:{entry.decision}:{entry.mode}:{entry.done}"
            days[redis_key("audit-day", day), label] += 1
        with self._redis.pipeline(transaction=False) as pipeline:
            for (key, label), number in days.items():
                pipeline.hincrby(key, label, number)
                pipeline.expire(key, _TOTAL_DAYS * _DAY_SECONDS)
                pipeline.hincrbyfloat("memgate:counters", f"decisions/{label}", number)
            pipeline.execute()

    def _known_places(self, places: set[str]) -> set[str]:
        known = {place.decode() for place in self._redis.smembers(_PLACES)}
        fresh = sorted(places - known)[: max(0, _MAX_PLACES - len(known))]
        if fresh:
            self._redis.sadd(_PLACES, *fresh)
            self._redis.expire(_PLACES, _TOTAL_DAYS * _DAY_SECONDS)
        return known | set(fresh)

    def _trim(self) -> None:
        """Drop what is too old, and the oldest if there are too many; a piece at a time."""
        oldest = datetime.now(UTC).timestamp() - self._settings.audit_days * _DAY_SECONDS
        gone = self._redis.zrangebyscore(_TIMES, "-inf", oldest, start=0, num=_PIECE)
        excess = self._redis.zcard(_TIMES) - self._settings.audit_max
        if excess > 0:
            gone = [*gone, *self._redis.zrange(_TIMES, 0, min(excess, _PIECE) - 1)]
        self._drop(list(dict.fromkeys(gone)))

    def _drop(self, ids: Sequence[bytes]) -> None:
        names = [one.decode() for one in ids]
        with self._redis.pipeline(transaction=False) as pipeline:
            for name, entry in zip(names, self._read_all(names), strict=True):
                pipeline.delete(_key(name))
                for index in [_TIMES, *(_indexes(entry) if entry else ())]:
                    pipeline.zrem(index, name)
            pipeline.execute()

    def read(
        self,
        *,
        since: float = 0.0,
        until: float = float("inf"),
        count: int = 100,
        start: str = "",
        **wanted: str,
    ) -> Page:
        """Return records, the newest first.

        Args:
            since: seconds since 1970.
            until: the same; records at that moment are included.
            count: at most so many.
            start: where the page before ended.
            **wanted: fields of a record, of which some are indexed, and their values.
        """
        found: list[AuditEntry] = []
        for entry in self._walk(since, until, start, wanted):
            if len(found) == count:
                last = found[-1]
                return Page(found, f"{last.at!r}:{last.id}")
            found.append(entry)
        return Page(found, "")

    def walk(
        self, *, since: float = 0.0, until: float = float("inf"), **wanted: str
    ) -> Iterator[AuditEntry]:
        """Yield all such records, the newest first."""
        return self._walk(since, until, "", wanted)

    def _walk(
        self, since: float, until: float, start: str, wanted: Mapping[str, str]
    ) -> Iterator[AuditEntry]:
        fields = {name: value for name, value in wanted.items() if value}
        index = next((_index(name, fields[name]) for name in INDEXED if name in fields), _TIMES)
        at, _, after = start.partition(":")
        most: float | str = min(until, float(at)) if after else until
        offset = 0
        while True:
            # whoever writes meanwhile adds in front of us: a record may be seen twice, none is lost
            ids = self._redis.zrevrangebyscore(index, _score(most), since, start=offset, num=_PIECE)
            names = [one.decode() for one in ids]
            if after in names and offset == 0:
                names = names[names.index(after) + 1 :]
            for entry in self._read_all(names):
                if entry and all(getattr(entry, name) == value for name, value in fields.items()):
                    yield entry
            if len(ids) < _PIECE:
                return
            offset += _PIECE

    def _read_all(self, ids: Sequence[str]) -> list[AuditEntry | None]:
        texts = self._redis.mget([_key(one) for one in ids]) if ids else []
        return [_read(text) for text in texts]

    def totals(self, days: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return the totals of days, such as 2026-05-01, by ``gate:place:decision:mode:done``."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for day in days:
                pipeline.hgetall(redis_key("audit-day", day))
            found = pipeline.execute()
        return {
            day: {label.decode(): int(number) for label, number in totals.items()}
            for day, totals in zip(days, found, strict=True)
            if totals
        }

    def rename_user(self, user: str, *, is_erased: bool = False) -> int:
        """Replace a user's name by a pseudonym, or erase it; return how many records had it.

        The pseudonym is the same for all records of a user, and cannot be turned back without a
        secret of this store.
        """
        name = "" if is_erased else self._pseudonym(user)
        changed = 0
        while ids := self._redis.zrange(_index("user", user), 0, _PIECE - 1):
            names = [one.decode() for one in ids]
            with self._redis.pipeline(transaction=False) as pipeline:
                for one, entry in zip(names, self._read_all(names), strict=True):
                    pipeline.zrem(_index("user", user), one)
                    if entry is None:
                        continue
                    changed += 1
                    fresh = entry.model_copy(update={"user": name, "groups": [], "name": ""})
                    pipeline.set(_key(one), fresh.text(), keepttl=True)
                    if name:
                        pipeline.zadd(_index("user", name), {one: entry.at})
                        pipeline.expire(_index("user", name), self._redis.ttl(_TIMES))
                pipeline.execute()
        return changed

    def _pseudonym(self, user: str) -> str:
        self._redis.set(_SALT, secrets.token_hex(16), nx=True)
        digest = hmac.new(self._redis.get(_SALT), user.encode(), hashlib.sha256)
        return f"user-{digest.hexdigest()[:12]}"


def _key(entry_id: str) -> str:
    return redis_key("audit-entry", entry_id)


def _index(name: str, value: str) -> str:
    return redis_key(f"audit-{name}", value)


def _indexes(entry: AuditEntry) -> list[str]:
    values = {name: str(getattr(entry, name)) for name in INDEXED}
    return [_TIMES, *(_index(name, value) for name, value in values.items() if value)]


def _place(entry: AuditEntry) -> str:
    return (entry.namespace or entry.partition or "none").replace(":", "_")


def _score(number: float | str) -> float | str:
    return "+inf" if number == float("inf") else number


def _read(text: bytes | None) -> AuditEntry | None:
    try:
        return None if text is None else AuditEntry.model_validate_json(text)
    except ValidationError:  # of another version
        return None
