"""Uploads: traces, memory snapshots and timeline files, from when they are sent until answered.

What they take together is bounded. An upload is kept while a question about it is open, and a while
longer if that was answered, since whoever reads the answer may ask on; but it then gives way to
others. One without an answer goes at once.
"""

from __future__ import annotations

import hashlib
import io
import time
from typing import Any, BinaryIO
from uuid import uuid4

from redis import Redis
from redis.exceptions import ResponseError

from memgate.contract import UploadsFullError
from memgate.units import MIB, format_size
from memgate_worker.queue.settings import QueueSettings

#: how much is kept of each caller's uploads
UPLOAD_SHARES = "memgate:traces:shares"

#: uploads by when they expire, their sizes, the sum of these, those that are answered by when they
#: were, whose each is, and shares
_INDEX = [
    *("memgate:traces", "memgate:traces:sizes", "memgate:traces:total"),
    *("memgate:traces:answered", "memgate:traces:callers", UPLOAD_SHARES),
]

#: an upload is copied in parts: it may be larger than what the service may take
_PART_BYTES = MIB
_PART_SECONDS = 600

#: how long an upload is kept that was answered, if there is room
_ANSWERED_SECONDS = 300

_DROP = """
local function drop(index, upload)
    redis.call('DEL', upload[2])
    local size = tonumber(redis.call('HGET', index[2], upload[1]) or 0)
    local caller = redis.call('HGET', index[5], upload[1]) or ''
    redis.call('DECRBY', index[3], size)
    if redis.call('HINCRBY', index[6], caller, -size) <= 0 then
        redis.call('HDEL', index[6], caller)
    end
    redis.call('HDEL', index[5], upload[1])
    redis.call('HDEL', index[2], upload[1])
    redis.call('ZREM', index[1], upload[1])
    redis.call('ZREM', index[4], upload[1])
end
"""

#: count bytes that are about to be kept until they expire; 0 if there is no room for them, even
#: without the answered ones, -1 if there is none for more of the caller's.
#: KEYS: the index. ARGV: name, bytes, timestamp, ttl, most, prefix, ttl of the index, caller, most
#: each
_RESERVE = (
    _DROP
    + """
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])) do
    drop(KEYS, {gone, ARGV[6] .. gone})
end
local before = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
local caller = before > 0 and redis.call('HGET', KEYS[5], ARGV[1]) or ARGV[8]
local added = tonumber(ARGV[2]) - before
local function lacks_room()
    local total = tonumber(redis.call('GET', KEYS[3]) or 0)
    return total + added > tonumber(ARGV[5])
end
redis.call('ZREM', KEYS[4], ARGV[1])
while lacks_room() do
    local answered = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
    if not answered then return 0 end
    drop(KEYS, {answered, ARGV[6] .. answered})
end
local function is_over_share()
    local share = tonumber(redis.call('HGET', KEYS[6], caller) or 0)
    return added > 0 and share + added > tonumber(ARGV[9])
end
for _, answered in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    if not is_over_share() then break end
    if redis.call('HGET', KEYS[5], answered) == caller then
        drop(KEYS, {answered, ARGV[6] .. answered})
    end
end
if is_over_share() then return -1 end
redis.call('INCRBY', KEYS[3], added)
redis.call('HINCRBY', KEYS[6], caller, added)
redis.call('HSET', KEYS[5], ARGV[1], caller)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[1])
for key = 1, 6 do redis.call('EXPIRE', KEYS[key], ARGV[7]) end  -- none of them is kept for longer
return 1
"""
)

#: keep an upload for an open question, for as long as answers are kept; 0 if it is gone, or the
#: question was answered meanwhile.
#: KEYS: the index, upload, who asks about it, job. ARGV: name, job id, timestamp, ttl
_KEEP = """
local state = redis.call('HGET', KEYS[9], 'state')
if state ~= 'queued' and state ~= 'running' then return 0 end
if redis.call('EXPIRE', KEYS[7], ARGV[4]) == 0 then return 0 end
redis.call('HSET', KEYS[9], 'upload', ARGV[1])
redis.call('SADD', KEYS[8], ARGV[2])
redis.call('EXPIRE', KEYS[8], ARGV[4])
redis.call('ZADD', KEYS[1], 'XX', tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
for key = 1, 6 do redis.call('EXPIRE', KEYS[key], ARGV[4]) end
return 1
"""

#: let an upload go, unless another open question is about it.
#: KEYS: the index, upload, who asks about it. ARGV: name, job id, timestamp, ttl (0: at once)
_LET_GO = (
    _DROP
    + """
redis.call('SREM', KEYS[8], ARGV[2])
if redis.call('SCARD', KEYS[8]) > 0 then return end
if ARGV[4] == '0' then return drop(KEYS, {ARGV[1], KEYS[7]}) end
if redis.call('EXPIRE', KEYS[7], ARGV[4]) == 0 then return end
redis.call('ZADD', KEYS[1], 'XX', tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[1])
redis.call('ZADD', KEYS[4], ARGV[3], ARGV[1])
"""
)


def redis_key(kind: str, name: str) -> str:
    """Return the name under which something is stored."""
    return f"memgate:{kind}:{name}"


class UploadStore:
    """Uploads by the digest of their bytes."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        #: Any: redis-py types each answer as one that may have to be awaited
        self.redis: Any = redis
        self._settings = settings
        self._reserve = redis.register_script(_RESERVE)
        self._keep = redis.register_script(_KEEP)
        self._let_go = redis.register_script(_LET_GO)

    def save_trace(self, upload: bytes | BinaryIO, caller: str = "") -> str:
        """Keep a caller's upload for a while; return the digest that names it.

        Raises:
            UploadsFullError: if there is no room for it, or not for more of the caller's.
        """
        file = io.BytesIO(upload) if isinstance(upload, bytes) else upload
        file.seek(0)
        name = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        size = file.seek(0, io.SEEK_END)
        ttl, most = self._settings.trace_ttl_seconds, self._settings.max_uploads_bytes
        lasts = max(ttl, self._settings.result_ttl_seconds)
        most_each = min(most, self._settings.max_uploads_bytes_each) if caller else most
        args: list[Any] = [
            *(name, size, time.time(), ttl, most, redis_key("trace", ""), lasts),
            *(caller, most_each),
        ]
        try:
            has_room = self._reserve(keys=_INDEX, args=args)
        except ResponseError as error:
            if not is_damaged(error):
                raise
            self.redis.delete(*_INDEX)  # start a new index; what is in no index expires
            has_room = self._reserve(keys=_INDEX, args=args)
        if has_room != 1:
            whose, most = (
                ("uploads", most) if has_room == 0 else (f"uploads of {caller}", most_each)
            )
            raise UploadsFullError(
                f"{whose} that wait for an answer already take nearly all of the"
                f" {format_size(most)} that they may take together, and this one has"
                f" {format_size(size)}: try again later, or send a smaller one"
            )
        self._copy(file, redis_key("trace", name), ttl)
        return name

    def _copy(self, file: BinaryIO, key: str, ttl: int) -> None:
        """Store a file in parts, which may be sent twice; nobody sees it before it is whole."""
        part = redis_key("part", uuid4().hex)
        self.redis.set(part, b"", ex=_PART_SECONDS)
        file.seek(0)
        offset = 0
        while chunk := file.read(_PART_BYTES):
            self.redis.setrange(part, offset, chunk)
            offset += len(chunk)
        with self.redis.pipeline() as pipeline:
            pipeline.rename(part, key)
            pipeline.expire(key, ttl)
            pipeline.execute()

    def load_trace(self, name: str) -> bytes | None:
        """Return an upload, if it is still stored."""
        data = self.redis.get(redis_key("trace", name))
        return None if data is None else bytes(data)

    def keep_upload(self, name: str, job_id: str) -> None:
        """Keep an upload until a question about it has its answer."""
        keys = [*self._keys_of(name), redis_key("job", job_id)]
        ttl = self._settings.result_ttl_seconds
        if not self._keep(keys=keys, args=[name, job_id, time.time(), ttl]):
            self.let_upload_go(name, job_id, is_answered=True)

    def let_upload_go(self, name: str, job_id: str, *, is_answered: bool) -> None:
        """Drop an upload soon if it was answered, or at once, unless others ask about it."""
        ttl = _ANSWERED_SECONDS if is_answered else 0
        self._let_go(keys=self._keys_of(name), args=[name, job_id, time.time(), ttl])

    @staticmethod
    def _keys_of(name: str) -> list[str]:
        return [*_INDEX, redis_key("trace", name), redis_key("asked-of", name)]


def is_damaged(error: ResponseError) -> bool:
    """Say whether an index has the wrong type, or does not hold numbers."""
    return any(words in str(error) for words in ("WRONGTYPE", "not an integer"))
