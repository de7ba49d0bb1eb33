"""Who asked a question, and for whom: what it is listed, withdrawn and counted by."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

#: a header for each field that a program which asks for others may name; values may be
#: percent-encoded, so that any letter gets through
OWNER_HEADERS = {
    "cluster": "X-Memgate-Cluster",
    "namespace": "X-Memgate-Namespace",
    "user": "X-Memgate-User",
    "job_name": "X-Memgate-Job-Name",
}

#: the longest of them
MAX_OWNER_TEXT = 256


class Owner(BaseModel):
    """Whose question it is."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    key: str = ""
    """Id of the API key that asked; empty where no keys are needed."""
    cluster: str = ""
    """The cluster whose gate asked."""
    namespace: str = ""
    """The namespace for which a gate asked."""
    user: str = ""
    """The user for whom a gate asked."""
    job_name: str = ""
    """What the job is called where it was submitted."""

    @property
    def is_on_behalf(self) -> bool:
        """A gate asked for somebody else."""
        return bool(self.cluster or self.namespace or self.user)

    @property
    def caller(self) -> str:
        """Whose share of the workers it takes; empty if nobody can be told apart.

        In Kubernetes that is the namespace: users of reviews are mostly controllers.
        """
        place = f" of {self.cluster}" if self.cluster else ""
        if self.namespace:
            return f"namespace {self.namespace}{place}"
        if self.user:
            return f"user {self.user}{place}"
        return f"key {self.key}" if self.key else ""


def list_tags(*, key: str = "", user: str = "") -> list[str]:
    """Return the lists of questions of a key, and of those that were asked for a user."""
    named = (("key", key), ("user", user))
    return [f"{kind} {name}" for kind, name in named if name]
