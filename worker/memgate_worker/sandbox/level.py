"""How far code of a caller's is kept apart from the machine that runs it."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """How far a command is kept apart; best first."""

    ROOT = "root"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def is_apart(self) -> bool:
        """Nothing that it starts outlives it or reaches a network."""
        return self in (Level.ROOT, Level.NAMESPACES)

    def reaches(self, least: Level) -> bool:
        """Say whether this is at least as strict as another."""
        order = list(Level)
        return order.index(self) <= order.index(least)
