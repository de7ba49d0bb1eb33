"""A name that is not in a list -> the names in the list that may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

#: comparing takes longer for longer names, and no name is longer than this
_MAX_LENGTH = 100

#: how alike two names must be, of 1
_LIKENESS = 0.75

#: fewer letters than this begin too many names
_SHORTEST_START = 3


def find_near(
    name: object, known: Iterable[str], *, limit: int = 3, likeness: float = _LIKENESS
) -> tuple[str, ...]:
    """Return the known names that are most like a wrong one, the most similar first.

    Case and the punctuation between words do not count: ``rtx3060`` is ``RTX 3060``. Where nothing
    is like it as a whole, names that begin with it are returned, the shortest first, or those that
    differ in one letter or in letters for digits.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_LENGTH:
        return ()
    wanted = loosen(name)
    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(loosen(one), []).append(one)
    if wanted in spellings:
        return tuple(spellings[wanted][:limit])
    like = get_close_matches(wanted, spellings, limit, likeness)
    # letters in another order are the likeliest slip, and are not that much alike: lroa, lora
    like.sort(key=lambda text: sorted(text) != sorted(wanted))
    if not like and len(wanted) >= _SHORTEST_START:
        like = sorted((text for text in spellings if text.startswith(wanted)), key=len)
        like = like or sorted((text for text in spellings if _looks_like(wanted, text)), key=len)
        like = like or [text for text in spellings if _is_one_letter_off(wanted, text)]
    return tuple(one for text in like for one in spellings[text])[:limit]


def _looks_like(name: str, other: str) -> bool:
    """Say whether a name begins another, but for letters instead of digits: h1oo, h100-80."""
    return other.translate(_DIGITS).startswith(name.translate(_DIGITS))


#: letters that are written for digits
_DIGITS = str.maketrans("oil", "011")


def _is_one_letter_off(name: str, other: str) -> bool:
    """Say whether two names differ in one letter: much of a short one, as nf5 is of nf4."""
    pairs = zip(name, other, strict=False)
    return len(name) == len(other) and sum(mine != theirs for mine, theirs in pairs) == 1


def loosen(name: str) -> str:
    """Return a name in lower case, without the punctuation between its words."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def list_choices(names: Iterable[str]) -> str:
    """Write names for a sentence: 'a', 'a' or 'b', 'a', 'b' or 'c'."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last
