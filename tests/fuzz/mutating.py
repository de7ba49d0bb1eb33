"""Bytes of an input -> other bytes that still are JSON, msgpack or a pickle, mostly.

Changed byte by byte, a document is broken before anything of ours looks at it. So half of the time
it is read, something in it is changed (a value, a key, a part that moves), and it is written again.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from memgate.errors import MemgateError
from memgate.snapshots.unpickling import unpickle_plain

#: changes bytes without knowing what they are: the fuzzer's own
Mutate = Callable[[bytes, int], bytes]

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 512, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32),
    *(1 << 40, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    *(0.0, -0.0, 0.5, 1e-9, 1.5, 1e16, 1e300, -1e300),
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "a",
        "\x00",
        "\ud7ff",
        "é",
        "1e9",
        "true",
        "null",
        "../x",
        "a" * 300,
    ),
    *([], {}, [0], [[]], {"a": 1}, [1, 2, 3], [-1, 1 << 40]),
)

_MAX_NODES = 3000


@dataclass(frozen=True, slots=True)
class Codec:
    """How documents of a target are read and written."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


JSON = Codec(msgspec.json.decode, msgspec.json.encode)
MSGPACK = Codec(msgspec.msgpack.decode, msgspec.msgpack.encode)
#: read by our own reader: what a fuzzer makes of a pickle must not be run
PICKLE = Codec(unpickle_plain, lambda document: pickle.dumps(document, protocol=2))

CODECS = {
    "trace": JSON,
    "snapshot": PICKLE,
    "timeline": MSGPACK,
    "spec": JSON,
    "question": JSON,
    "webhook": JSON,
}


class Mutator:
    """Changes documents of one kind; ``words`` are keys and values that mean something in them."""

    def __init__(self, codec: Codec, mutate: Mutate, words: Iterable[str]) -> None:
        self._codec = codec
        self._mutate = mutate
        self._words = sorted({*words}) or ["a"]

    def change(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Return other bytes."""
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return self._mutate(data, max_size)
        try:
            document = [self._codec.read(data)]
            for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
                self._change_one(document, chance)
            changed = self._codec.write(document[0])
        except (MemgateError, msgspec.MsgspecError, ValueError, TypeError, OverflowError):
            return self._mutate(data, max_size)
        except (RecursionError, pickle.PicklingError, UnicodeError):
            return self._mutate(data, max_size)
        return changed if len(changed) <= max_size else self._mutate(data, max_size)

    def _change_one(self, document: list[Any], chance: random.Random) -> None:
        places = list(_places(document))
        holder, key = chance.choice(places)
        value = holder[key]
        if isinstance(value, str) and value.startswith("{") and chance.random() < 0.8:
            holder[key] = self._change_text(value, chance)
            return
        choice = chance.randrange(8)
        if choice == 0:
            holder[key] = chance.choice(_ODD_VALUES)
        elif choice == 1 and holder is not document:
            del holder[key]
        elif choice == 2:
            other, name = chance.choice(places)
            holder[key] = _copied(other[name])
        elif choice == 3 and isinstance(holder, list) and holder is not document:
            holder.insert(chance.randrange(len(holder) + 1), _copied(value))
        elif choice == 4 and isinstance(value, dict):
            odd = (*_ODD_VALUES, chance.choice(self._words), _copied(chance.choice(places)[0]))
            value[chance.choice(self._words)] = chance.choice(odd)
        elif choice == 5:
            holder[key] = chance.choice(self._words)
        else:
            holder[key] = self._nudged(value, chance)

    def _change_text(self, text: str, chance: random.Random) -> str:
        """Change a document that is written in a text, as in an annotation."""
        try:
            inner = [msgspec.json.decode(text)]
        except msgspec.DecodeError:
            return str(self._nudged(text, chance))
        self._change_one(inner, chance)
        return msgspec.json.encode(inner[0]).decode()

    def _nudged(self, value: Any, chance: random.Random) -> Any:
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int):
            by = chance.choice((1, -1, 2, 511, 512, 1 << 20, value, -2 * value))
            return value + by
        if isinstance(value, float):
            return value * chance.choice((-1.0, 0.5, 2.0, 1e9))
        if isinstance(value, str):
            changed = self._mutate(value.encode(errors="replace"), 64 + len(value))
            return changed.decode(errors="replace")
        if isinstance(value, (bytes, bytearray)):
            return self._mutate(bytes(value), 16 + len(value))
        return chance.choice(_ODD_VALUES)


def find_words(codec: Codec, seeds: Iterable[bytes]) -> set[str]:
    """Return the keys and short texts of documents; a seed in another form has none."""
    words: set[str] = set()
    for seed in seeds:
        with suppress(msgspec.MsgspecError):
            words.update(_words(codec.read(seed)))
    return words


def _words(document: Any) -> Iterator[str]:
    for holder, key in _places([document]):
        for word in (key, holder[key]):
            if isinstance(word, str) and len(word) < 60:
                yield word


def _places(document: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield what holds a value, and under which key; not more than is worth it."""
    waiting: list[Any] = [document]
    num_found = 0
    while waiting and num_found < _MAX_NODES:
        holder = waiting.pop()
        keys: Iterable[Any] = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            num_found += 1
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])


def _copied(value: Any) -> Any:
    """Copy what may soon be changed, so that nothing holds itself."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
