"""The record of one decision of a gate: who asked for what, what was decided, and what was done.

Kept small, under a kilobyte: long texts are cut. ``worker/memgate_worker/queue/audit_log.py``
stores records, docs/audit.md describes them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

#: characters of a name, and of a reason
_MAX_NAME = 64
_MAX_WHY = 200
_MAX_GROUPS = 6

#: of a record as it is stored, and characters of each text if it would be longer
_MAX_BYTES = 1024
_SHORT = 32

_EXAMPLE: JsonDict = {
    "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "at": 1790000000.0,
    "gate": "slurm",
    "user": "ada",
    "account": "physics",
    "partition": "gpu",
    "gpu": "a100-80",
    "decision": "reject",
    "mode": "warn",
    "rule": "cluster",
    "done": "admitted",
    "would": "refused",
    "why": "needs 90.61 GiB, a100-80 has 79.15 GiB",
}

GateName = Literal["slurm", "kubernetes", "kueue"]
Done = Literal["admitted", "refused", "held", "released", "canceled", "noted"]


def _short(most: int, text: object) -> object:
    return " ".join(text.split())[:most] if isinstance(text, str) else text


def _few(groups: object) -> object:
    return groups[:_MAX_GROUPS] if isinstance(groups, list) else groups


Name = Annotated[str, BeforeValidator(lambda text: _short(_MAX_NAME, text))]
Why = Annotated[str, BeforeValidator(lambda text: _short(_MAX_WHY, text))]


class AuditEntry(BaseModel):
    """One decision about one job."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    id: Annotated[str, Field(pattern="^[0-9A-Za-z-]{8,64}$")]
    """Of the record: one that is sent twice is stored once."""
    at: Annotated[float, Field(ge=0, le=1e11)]
    """When, in seconds since 1970."""
    gate: GateName
    """Which gate decided."""
    user: Name = ""
    """Who submitted it."""
    groups: Annotated[list[Name], BeforeValidator(_few)] = []
    """The user's groups, as far as the gate knows them; the first few."""
    account: Name = ""
    """The account, in Slurm."""
    qos: Name = ""
    """The quality of service, in Slurm."""
    partition: Name = ""
    """The partition, in Slurm."""
    namespace: Name = ""
    """The namespace, in Kubernetes."""
    kind: Name = ""
    """What it is: `job` in Slurm, `Job.batch` and so on in Kubernetes."""
    name: Name = ""
    """What its owner calls it."""
    job: Name = ""
    """The cluster's own id of it, if it has one."""
    gpu: Name = ""
    """The GPU it was judged for."""
    num_gpus: int | None = None
    """How many GPUs it asks for."""
    decision: Name = ""
    """`admit`, `reject`, `uncertain`, `unanswered`, `bad_spec`, `unknown_gpu`, `undescribed`,
    `rehearsal`, `skipped` or `exempt`."""
    mode: Name = ""
    """`enforce`, `warn` or `audit`."""
    rule: Name = ""
    """Which rule of the policy applied; `cluster` if none is about the job."""
    done: Done
    """What was done."""
    would: Name = ""
    """What `enforce` would have done, if that is something else."""
    why: Why = ""
    """The reason in words."""
    estimate: Name = ""
    """The id of the estimate."""
    page: Why = ""
    """Where a person can look at the estimate."""
    near_miss: Name = ""
    """What looks like a description and is not one."""
    ms: int | None = None
    """How long the gate took, in milliseconds: for Slurm, time of its controller."""

    def text(self) -> str:
        """Write it as it is stored, in less than a kilobyte: what is too long is cut further."""
        said = self.model_dump_json(exclude_defaults=True)
        if len(said.encode()) < _MAX_BYTES:
            return said
        fields = self.model_dump(exclude_defaults=True, exclude={"groups", "near_miss", "page"})
        short = {key: one[:_SHORT] if isinstance(one, str) else one for key, one in fields.items()}
        return AuditEntry.model_validate(short).model_dump_json(exclude_defaults=True)

    def cells(self) -> dict[str, object]:
        """Return it as a row of a table; no text begins a formula in a spreadsheet."""
        said = self.model_dump() | {"groups": " ".join(self.groups)}
        return {name: _plain(value) for name, value in said.items()}


def _plain(value: object) -> object:
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@")
    return f"'{value}" if is_formula else value


class AuditBatch(BaseModel):
    """Records that a gate sends."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"entries": [_EXAMPLE]}]},
    )

    entries: Annotated[list[AuditEntry], Field(max_length=1000)]
    """The records, in any order."""
