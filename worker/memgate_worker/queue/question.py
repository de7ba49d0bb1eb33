"""A question as it is stored: which run answers it, and whose it is.

What cannot be read, an older or a later version's, counts as absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from secrets import token_hex

import msgspec

from memgate.contract import Asker, Failure, JobRecord, JobState, WorkKind
from memgate.errors import Fault
from memgate.owner import Owner, list_tags

#: why a question that was withdrawn has no answer
_WITHDRAWN = Failure(code="CANCELED", message="the question was withdrawn", fault=Fault.PASSING)

#: the list of all questions
EVERYBODY = "all"

#: bytes of chance in an id: nobody guesses one
_ID_BYTES = 16


def make_question_id() -> str:
    """Make an id that nobody can guess."""
    return token_hex(_ID_BYTES)


class AskedQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody asked."""

    id: str
    run: str
    """Id of the run that answers it."""
    kind: WorkKind
    at: float
    asked_by: Asker = Asker.CALLER
    key: str = ""
    cluster: str = ""
    namespace: str = ""
    user: str = ""
    job_name: str = ""
    is_withdrawn: bool = False

    @classmethod
    def of(
        cls,
        run: str,
        kind: WorkKind,
        at: float,
        owner: Owner,
        asked_by: Asker = Asker.CALLER,
        id: str = "",
    ) -> AskedQuestion:
        """Make a question of an owner's, with a new id unless it has one."""
        return cls(
            id=id or make_question_id(),
            run=run,
            kind=kind,
            at=at,
            asked_by=asked_by,
            key=owner.key,
            cluster=owner.cluster,
            namespace=owner.namespace,
            user=owner.user,
            job_name=owner.job_name,
        )

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner(
            key=self.key,
            cluster=self.cluster,
            namespace=self.namespace,
            user=self.user,
            job_name=self.job_name,
        )

    @property
    def tags(self) -> list[str]:
        """The lists that it is in."""
        return list_tags(key=self.key, user=self.user)

    def withdrawn(self) -> AskedQuestion:
        """Return it as withdrawn."""
        return msgspec.structs.replace(self, is_withdrawn=True)

    def state_of(self, run: JobState | None) -> JobState | None:
        """Return its state, given that of its run; None if the run no longer exists."""
        return JobState.CANCELED if run is not None and self.is_withdrawn else run

    def view(self, run: JobRecord, public_url: str) -> JobRecord:
        """Return the record of its run as that of the question."""
        mine = {
            "id": self.id,
            "run": run.id,
            "owner": self.owner,
            "asked_at": datetime.fromtimestamp(self.at, UTC),
            "asked_by": self.asked_by,
        }
        if self.is_withdrawn:
            gone = {"state": JobState.CANCELED, "result": None, "error": _WITHDRAWN}
            return run.model_copy(update=mine | gone)
        return run.model_copy(update=mine).with_page(public_url)


_decoder = msgspec.json.Decoder(AskedQuestion)
_encoder = msgspec.json.Encoder()


def read_question(packed: bytes | None) -> AskedQuestion | None:
    """Read a question; None if there is none that can be read."""
    try:
        return None if packed is None else _decoder.decode(packed)
    except (msgspec.DecodeError, ValueError):
        return None


def write_question(question: AskedQuestion) -> str:
    """Write a question as it is stored."""
    return _encoder.encode(question).decode()


def pack_questions(questions: Sequence[AskedQuestion]) -> bytes:
    """Write questions as ``question_scripts.KEEP_QUESTIONS`` takes them."""
    rows = [
        (one.id, write_question(one), one.run, one.at, [EVERYBODY, *one.tags]) for one in questions
    ]
    return _encoder.encode(rows)
