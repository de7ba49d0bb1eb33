"""A policy, read again when it changes: a broken one leaves the last good one in force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memgate_service.admission.core.rules import Mode, PolicyDocument, PolicyError, parse_policy

#: before there was any policy that could be read it is not known what is wanted
_NOTHING_ENFORCED = PolicyDocument(mode=Mode.AUDIT)


class PolicyFile:
    """The policy in a file; None for none, which is an empty policy."""

    def __init__(
        self,
        path: Path | None,
        log: Callable[[str], None],
        *,
        is_optional: bool = False,
        default: PolicyDocument | None = None,
    ) -> None:
        self._path = path
        self._log = log
        self._is_optional = is_optional
        self._default = default or PolicyDocument()
        self._text: bytes | None = None
        self._good: PolicyDocument | None = None
        #: what is wrong with the file; empty if nothing is
        self.problem = ""

    def read(self) -> PolicyDocument:
        """Return the policy that is in force."""
        if self._path is None:
            return self._default
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            if self._is_optional and self._good is None:
                return self._default
            return self._broken(f"{self._path}: it is not there")
        except OSError as error:
            return self._broken(f"{self._path}: {error.strerror}")
        if text == self._text and self._good is not None and not self.problem:
            return self._good
        try:
            self._good, self._text = parse_policy(text), text
        except PolicyError as error:
            return self._broken(f"{self._path}: {error.message}")
        self.problem = ""
        return self._good

    def _broken(self, problem: str) -> PolicyDocument:
        if problem != self.problem:
            kept = "the last good one stays in force" if self._good else "nothing is enforced"
            self._log(f"the policy is wrong, {kept}: {problem}")
        self.problem = problem
        return self._good or _NOTHING_ENFORCED
