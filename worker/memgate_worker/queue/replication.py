"""Replicas of the queue's server: whether they have what was written, and what the server says.

Replication is asynchronous: a primary that is lost takes with it what no replica has. So where
there are replicas, a question counts as accepted once so many of them have confirmed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis import Redis
from redis.exceptions import ResponseError

from memgate.contract import NotConfirmedError

#: how long replicas may take to confirm; less than a caller's connection waits for the server
_CONFIRM_SECONDS = 1.0

#: WAIT waits for what the same connection wrote, so there must be something; what was written
#: before it, over any connection, reaches a replica first
_MARK = "memgate:confirmed"
_MARK_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What the server says about its replicas."""

    is_primary: bool
    num_replicas: int

    @classmethod
    def read(cls, redis: Redis) -> Self:
        """Ask the server; one that says nothing about replicas shows none."""
        client: Any = redis  # redis-py types each answer as one that may have to be awaited
        said = client.info("replication")
        replicas = (said.get(f"slave{number}") for number in range(said.get("connected_slaves", 0)))
        return cls(
            is_primary=said.get("role", "master") == "master",
            num_replicas=sum(
                isinstance(one, dict) and one.get("state") == "online" for one in replicas
            ),
        )


def confirm(redis: Redis, keys: Sequence[str], num_replicas: int) -> None:
    """Return once so many replicas have these keys, and everything that was written before.

    Raises:
        NotConfirmedError: if too few say so in time, or a key is gone: the server that had it was
            lost, and another is the primary now.
    """
    client: Any = redis
    with client.pipeline(transaction=False) as pipeline:
        pipeline.exists(*keys)
        pipeline.set(_MARK, "1", ex=_MARK_SECONDS)
        pipeline.execute_command("WAIT", num_replicas, int(_CONFIRM_SECONDS * 1000))
        try:
            num_there, _, num_confirmed = pipeline.execute()
        except ResponseError as error:  # a managed service may not know WAIT, or not allow it
            raise NotConfirmedError(
                f"the queue's server cannot confirm that a replica has the question ({error}); the"
                " operator has to set MEMGATE_REPLICAS to 'unconfirmed' if that is to be accepted"
            ) from error
    if num_there == len(keys) and num_confirmed >= num_replicas:
        return
    # This may be a former primary: whoever asks next asks Sentinel, too.
    redis.connection_pool.disconnect(inuse_connections=False)
    raise NotConfirmedError(
        "the queue's server has the question, but no replica has confirmed it: it may be lost with"
        " that server, so it is not accepted. Ask again: no question runs twice"
        if num_confirmed < num_replicas
        else "the queue's server was replaced by another while the question was stored; ask again"
    )
