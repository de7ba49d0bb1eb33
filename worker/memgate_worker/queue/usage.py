"""Who uses what of the queue: open jobs, those that run, and bytes of uploads, by caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from redis import Redis

from memgate_worker.queue.blobs import UPLOAD_SHARES, redis_key
from memgate_worker.queue.leases import OPEN

#: the caller and the state of each open job, in pairs. KEYS: open. ARGV: prefix of jobs
_OPEN_JOBS = """
local found = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local fields = redis.call('HMGET', ARGV[1] .. id, 'caller', 'state')
    if fields[2] then
        found[#found + 1] = fields[1] or ''
        found[#found + 1] = fields[2]
    end
end
return found
"""

#: what those are called together that are not told apart
OTHERS = "others"


class CallerShares(NamedTuple):
    """What callers use; without a name, where nobody can be told apart."""

    open_jobs: dict[str, int]
    running: dict[str, int]
    stored_bytes: dict[str, int]


def read_shares(redis: Redis) -> CallerShares:
    """Return what callers use now."""
    client: Any = redis
    found = [part.decode() for part in client.eval(_OPEN_JOBS, 1, OPEN, redis_key("job", ""))]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    sizes = client.hgetall(UPLOAD_SHARES)
    return CallerShares(
        open_jobs=dict(Counter(caller for caller, _ in pairs)),
        running=dict(Counter(caller for caller, state in pairs if state == "running")),
        stored_bytes={caller.decode(): int(size) for caller, size in sizes.items() if int(size)},
    )


def sum_up_rest(numbers: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the largest of these, and the sum of the others."""
    ordered = sorted(numbers.items(), key=lambda one: (-one[1], one[0]))
    kept = dict(ordered[:most])
    if rest := sum(number for _, number in ordered[most:]):
        kept[OTHERS] = kept.get(OTHERS, 0) + rest
    return kept
