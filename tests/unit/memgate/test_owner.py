"""Whose question it is, and whose share of the workers it takes."""

from __future__ import annotations

import pytest

from memgate.owner import Owner, list_tags


@pytest.mark.parametrize(
    ("owner", "want_caller", "want_on_behalf"),
    [
        (Owner(), "", False),
        (Owner(key="1a"), "key 1a", False),
        (Owner(key="1a", user="ada"), "user ada", True),
        (Owner(key="1a", user="ada", cluster="north"), "user ada of north", True),
        (Owner(key="1a", user="ada", namespace="team"), "namespace team", True),
        (Owner(namespace="team", cluster="north"), "namespace team of north", True),
        (Owner(key="1a", cluster="north"), "key 1a", True),
    ],
)
def test_the_one_for_whom_was_asked_takes_the_share(
    owner: Owner, want_caller: str, want_on_behalf: bool
) -> None:
    """A namespace before its users, who are mostly controllers; a key that asks for itself."""
    assert (owner.caller, owner.is_on_behalf) == (want_caller, want_on_behalf)


def test_questions_are_listed_by_key_and_user() -> None:
    """Each name that there is has a list."""
    assert list_tags() == []
    assert list_tags(key="1a", user="ada") == ["key 1a", "user ada"]
