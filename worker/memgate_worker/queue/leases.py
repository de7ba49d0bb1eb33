"""Which worker holds which job, and which jobs have a place for runs.

What decides is in ``scripts``; a worker's own end of a lease is ``lease``, and ``referee`` sees to
the places.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis

from memgate_worker.queue import scripts
from memgate_worker.queue.blobs import BlobStore, redis_key
from memgate_worker.queue.settings import QueueSettings

#: the jobs that are open, by the time they were created
OPEN = "memgate:open"
#: which jobs have a place for runs, and which wait for one outside of the queues
RUNNING = "memgate:running"
PARKED = "memgate:parked"


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class LeaseStore(BlobStore):
    """What is stored about who works on what."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._begin = redis.register_script(scripts.BEGIN)
        self._hold = redis.register_script(scripts.HOLD)
        self._release = redis.register_script(scripts.RELEASE)
        self._orphaned = redis.register_script(scripts.ORPHANED)
        self._lead = redis.register_script(scripts.LEAD)

    def begin(self, job_id: str, worker: str, *, num_places: int = 0) -> bool:
        """Take a job; False if it has ended, another worker holds it, or it was parked.

        Args:
            job_id: the job's.
            worker: who takes it.
            num_places: how many places for runs there are; 0: it needs none.
        """
        begun = self._begin(
            keys=[redis_key("job", job_id), redis_key("lease", job_id), RUNNING, PARKED],
            args=[
                *(worker, self._lease_ms(), now().isoformat(), job_id),
                *(redis_key("lease", ""), num_places),
            ],
        )
        return bool(begun == 1)

    def hold(self, job_id: str, worker: str) -> bool:
        """Renew a worker's lease on a job; False if the worker should stop."""
        keys = [redis_key("job", job_id), redis_key("lease", job_id)]
        args: list[Any] = [worker, self._lease_ms(), self.lease_end()]
        return bool(self._hold(keys=keys, args=args))

    def is_held_by(self, job_id: str, worker: str) -> bool:
        """Return whether a worker's lease on a job is still there."""
        return bool(self.redis.get(redis_key("lease", job_id)) == worker.encode())

    def release(self, job_id: str, worker: str) -> None:
        """Give a job back before the lease expires, unless another worker holds it by now."""
        keys = [redis_key("job", job_id), redis_key("lease", job_id), RUNNING]
        self._release(keys=keys, args=[worker, job_id])

    def orphaned(self, queue_keys: Sequence[str]) -> list[str]:
        """Return the orphaned jobs: open, in none of rq's queues, and held by no worker."""
        found = self._orphaned(keys=[OPEN, PARKED, *queue_keys], args=[redis_key("lease", "")])
        return [job_id.decode() for job_id in found]

    def lead(self, name: str, office: str = "watchdog") -> bool:
        """Return whether this one of many holds an office; for one lease at a time."""
        return bool(self._lead(keys=[f"memgate:{office}"], args=[name, self._lease_ms()]))

    def _lease_ms(self) -> int:
        return int(self._settings.lease_seconds * 1000)

    def lease_end(self) -> str:
        """Return when a lease that begins now will end."""
        return (now() + timedelta(seconds=self._settings.lease_seconds)).isoformat()

    def claim_rescue(self, job_id: str) -> bool:
        """Return whether this watchdog is the first to see that a job was orphaned."""
        return bool(self.redis.set(redis_key("rescue", job_id), "1", nx=True, px=self._lease_ms()))

    def num_parked(self) -> int:
        """Return how many jobs wait outside of the queues, since their caller has a run already."""
        return int(self.redis.llen(PARKED))
