"""Questions: asked, kept, found, listed and withdrawn. Which run answers one is in ``question``.

An answer that the service gives from its memory is a question, too: it is kept a moment later, with
others.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memgate.contract import JobRecord, JobState, UnknownJobError, WorkKind
from memgate.units import MIB
from memgate_worker.queue import question_scripts
from memgate_worker.queue.blobs import redis_key
from memgate_worker.queue.leases import OPEN, now
from memgate_worker.queue.question import (
    EVERYBODY,
    AskedQuestion,
    pack_questions,
    read_question,
    write_question,
)
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import CANCELED, FINISHED_CHANNEL, JobStore

#: how many questions are looked at to fill a page of a filtered list
_MAX_SCANNED = 5_000
_READ_AT_ONCE = 50

#: how much a page may hold of what is stored: one may have 130 kB, and many read at a time
_MAX_PAGE_BYTES = MIB // 2


class Questions:
    """The questions that are kept."""

    def __init__(self, store: JobStore, settings: QueueSettings) -> None:
        self._store = store
        self._redis: Any = store.redis
        self._settings = settings
        self._keep = self._redis.register_script(question_scripts.KEEP_QUESTIONS)
        self._withdraw = self._redis.register_script(question_scripts.WITHDRAW)

    def keep(self, questions: Sequence[AskedQuestion]) -> None:
        """Keep questions about runs that have ended."""
        settings = self._settings
        self._keep(
            args=[
                *(pack_questions(questions), settings.result_ttl_seconds, now().timestamp()),
                *(settings.max_jobs, settings.max_jobs_each),
            ]
        )

    def find(self, question_id: str) -> AskedQuestion | None:
        """Return a question, None if there is none that can be read."""
        return read_question(self._redis.get(redis_key("question", question_id)))

    def read(self, question_id: str) -> JobRecord:
        """Return a question in its current state.

        Raises:
            UnknownJobError: if there is none.
        """
        question = self.find(question_id)
        if question is None:
            raise _unknown(question_id)
        return self.view(question)

    def view(self, question: AskedQuestion) -> JobRecord:
        """Return a question in its current state.

        Raises:
            UnknownJobError: if its run is not kept any longer.
        """
        run = self._store.find(question.run)
        if run is None:
            raise _unknown(question.id)
        return question.view(run, self._settings.public_url)

    def withdraw(self, question: AskedQuestion) -> None:
        """Withdraw a question unless it is answered; its run ends if it was the last one."""
        job = question.run
        self._withdraw(
            keys=[
                *(redis_key("job", job), OPEN, FINISHED_CHANNEL),
                *(redis_key("question", question.id), redis_key("wanted", job)),
                redis_key("lease", job),
            ],
            args=[
                *(job, now().isoformat(), self._settings.result_ttl_seconds),
                *(redis_key("open", ""), CANCELED.model_dump_json(), question.id),
                write_question(question.withdrawn()),
            ],
        )
        if self._store.states([job]) == [JobState.CANCELED]:
            self._store.drop_upload_of(job, is_answered=False)

    def list(
        self,
        tags: Sequence[str] | None,
        *,
        offset: int,
        count: int,
        state: JobState | None = None,
        kind: WorkKind | None = None,
    ) -> tuple[builtins.list[JobRecord], int | None]:
        """Return questions, the newest first, and where the next ones begin, if there are more.

        With filters, only of the newest few thousand. A page of large ones has fewer of them.

        Args:
            tags: the lists that they are in; None: everybody's.
            offset: how many to skip.
            count: how many to return at most.
            state: only these.
            kind: only these.
        """
        if state is None and kind is None:
            ids, num_all = self._ids(tags, offset, count), self.count(tags)
            asked = self._load(ids)
        else:
            found = self._matching(self._load(self._ids(tags, 0, _MAX_SCANNED)), state, kind)
            asked, num_all = found[offset : offset + count], len(found)
            ids = [one.id for one in asked]
        shown = asked[: self._store.num_fitting([one.run for one in asked], _MAX_PAGE_BYTES)]
        # some may have expired: they are passed over
        num_seen = len(ids) if len(shown) == len(asked) else ids.index(shown[-1].id) + 1
        after = offset + num_seen
        return self._views(shown), None if not ids or after >= num_all else after

    def read_many(self, question_ids: Sequence[str]) -> builtins.list[JobRecord]:
        """Return those of these questions that exist."""
        return self._views(self._load(question_ids))

    def note_proposal(self, question_id: str, name: str, asked_id: str) -> None:
        """Note which question was asked about something to try, on the page of another one."""
        key = redis_key("proposals", question_id)
        self._redis.hset(key, name, asked_id)
        self._redis.expire(key, self._settings.result_ttl_seconds)

    def proposals(self, question_id: str) -> dict[str, str]:
        """Return the questions that were asked about what to try, by name."""
        found = self._redis.hgetall(redis_key("proposals", question_id))
        return {name.decode(): asked.decode() for name, asked in found.items()}

    def newest(self, tags: Sequence[str] | None) -> Iterator[JobRecord]:
        """Yield questions, the newest first, of the newest few thousand."""
        return self._in_turn(self._load(self._ids(tags, 0, _MAX_SCANNED)))

    def count(self, tags: Sequence[str] | None) -> int:
        """Return how many questions are listed; one that is in two lists counts twice."""
        return sum(self._redis.zcard(redis_key("asked", tag)) for tag in _lists(tags))

    def states(self, question_ids: Sequence[str]) -> builtins.list[JobState | None]:
        """Return the states of questions; None for those that do not exist."""
        known = {one.id: one for one in self._load(question_ids)}
        states = dict(zip(known, self._states(known.values()), strict=True))
        return [states.get(question_id) for question_id in question_ids]

    def _states(self, questions: Iterable[AskedQuestion]) -> builtins.list[JobState | None]:
        questions = list(questions)
        runs = self._store.states([one.run for one in questions])
        return [one.state_of(run) for one, run in zip(questions, runs, strict=True)]

    def _ids(self, tags: Sequence[str] | None, offset: int, count: int) -> builtins.list[str]:
        lists = [redis_key("asked", tag) for tag in _lists(tags)]
        if len(lists) == 1:
            found = self._redis.zrevrange(lists[0], offset, offset + count - 1)
            return [question_id.decode() for question_id in found]
        listed: dict[bytes, float] = {}
        for name in lists:
            listed |= dict(self._redis.zrevrange(name, 0, offset + count - 1, withscores=True))
        ids = sorted(listed, key=lambda question_id: listed[question_id], reverse=True)
        return [question_id.decode() for question_id in ids[offset : offset + count]]

    def _load(self, question_ids: Sequence[str]) -> builtins.list[AskedQuestion]:
        """Return those of these questions that exist."""
        if not question_ids:
            return []
        packed = self._redis.mget([redis_key("question", one) for one in question_ids])
        return [one for one in map(read_question, packed) if one is not None]

    def _matching(
        self, questions: builtins.list[AskedQuestion], state: JobState | None, kind: WorkKind | None
    ) -> builtins.list[AskedQuestion]:
        found = [one for one in questions if kind is None or one.kind == kind]
        if state is None:
            return found
        states = self._states(found)
        return [one for one, has in zip(found, states, strict=True) if has is state]

    def _in_turn(self, questions: Sequence[AskedQuestion]) -> Iterator[JobRecord]:
        """Yield those whose runs exist; of thousands, only a few are in memory at a time."""
        for start in range(0, len(questions), _READ_AT_ONCE):
            yield from self._views(questions[start : start + _READ_AT_ONCE])

    def _views(self, questions: Sequence[AskedQuestion]) -> builtins.list[JobRecord]:
        ids = list(dict.fromkeys(one.run for one in questions))
        runs = {run.id: run for run in self._store.read_many(ids)}
        url = self._settings.public_url
        return [one.view(runs[one.run], url) for one in questions if one.run in runs]


def _lists(tags: Sequence[str] | None) -> Sequence[str]:
    return [EVERYBODY] if tags is None else tags


def _unknown(question_id: str) -> UnknownJobError:
    return UnknownJobError(f"there is no job {question_id!r}; it may have expired")
