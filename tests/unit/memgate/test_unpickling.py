"""Pickles without pickle: plain values come out, anything else is refused by its name."""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import pickletools
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.errors import InputError, SnapshotFormatError
from memgate.gpus import CATALOGUE, GpuTarget
from memgate.snapshots import unpickling
from memgate.snapshots.opcodes import OPCODE_NAMES
from memgate.snapshots.reading import read_histories, read_snapshot
from memgate.snapshots.unpickling import unpickle_plain
from memgate.units import MIB
from memgate_worker.snapshots import estimate_snapshot
from tests.snapshots import REAL_SNAPSHOTS, make_malicious

_SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**120), 2**120), st.floats(allow_nan=False)),
    *(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=300)),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inside: st.one_of(
        st.lists(inside, max_size=5),
        st.tuples(inside),
        st.tuples(inside, inside, inside, inside),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inside, max_size=5),
    ),
    max_leaves=20,
)


@given(value=_VALUES, protocol=st.integers(3, 5))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    """Whatever is nested in what, as Python itself writes it."""
    assert unpickle_plain(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_a_real_snapshot_is_read_as_python_reads_it(protocol: int) -> None:
    """In every protocol, though PyTorch writes the newest only."""
    data = gzip.decompress((REAL_SNAPSHOTS / "adam-torch-2.14.pickle.gz").read_bytes())
    document = pickle.loads(data)

    assert unpickle_plain(pickle.dumps(document, protocol=protocol)) == document


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"I01\n.", True),
        (b"I00\n.", False),
        (b"I-7\n.", -7),
        (b"L12L\n.", 12),
        (b"F1.5\n.", 1.5),
        (b"Vt\\u00e4g\n.", "täg"),
        (b"(lp0\nI1\na.", [1]),
        (b"(dp7\nVa\nI1\ns(V2\ng7\ntp8\n0.", {"a": 1}),
        (b"(I1\nI2\nt.", (1, 2)),
        (b"(Va\nI1\nd.", {"a": 1}),
        (b"N2\x86.", (None, None)),
        (b"]((NN10N0.", []),
        (b"\x80\x02B\x02\x00\x00\x00ab.", b"ab"),
        (b"\x80\x02\x8b\x01\x00\x00\x00\x05.", 5),
        (b"\x80\x04\x8d\x01\x00\x00\x00\x00\x00\x00\x00a.", "a"),
        (b"\x80\x04\x8e\x01\x00\x00\x00\x00\x00\x00\x00a.", b"a"),
        (b"\x80\x02X\x01\x00\x00\x00\xffq\x010h\x01.", "\ufffd"),
    ],
)
def test_rare_opcodes_do_what_the_format_says(data: bytes, want: object) -> None:
    """Those of old protocols, and those that no program writes."""
    assert unpickle_plain(data) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"", "the file is cut off"),
        (b"\x80", "the file is cut off"),
        (b"\x80\x06.", "protocol 6 is not known"),
        (b".", "a value is missing"),
        (b"(.", "a value is missing"),
        (b"t.", "a mark is missing"),
        (b"a.", "a value is missing"),
        (b"NNa.", "what is not a list"),
        (b"N(e.", "what is not a list"),
        (b"NVa\nNs.", "what is not a dict"),
        (b"}(Nu.", "a key has no value"),
        (b"}NNs.", "a key is not a string"),
        (b"h\x01.", "not remembered"),
        (b"q\x01.", "nothing to remember"),
        (b"Ix\n.", "a whole number is none"),
        (b"Fx\n.", "a number is none"),
        (b"I1", "has no end"),
        (b"Vx", "a string has no end"),
        (b"V\\u00\n.", "a string is not text"),
        (b"\x8a\x20.", "32 bytes, 16 at most"),
        (b"\xfe.", "there is no opcode 0xfe"),
    ],
)
def test_what_is_broken_is_refused_in_a_sentence(data: bytes, want: str) -> None:
    """With the byte where it shows."""
    with pytest.raises(SnapshotFormatError, match=want):
        unpickle_plain(data)


def test_opcodes_have_the_names_that_python_gives_them() -> None:
    """All of them; and those that are not plain are refused by these names."""
    assert {ord(op.code): op.name for op in pickletools.opcodes} == OPCODE_NAMES
    refused = {name for code, name in OPCODE_NAMES.items() if code not in unpickling._STEPS}
    assert refused == {
        *("STOP", "STRING", "BINSTRING", "SHORT_BINSTRING", "BYTEARRAY8", "NEXT_BUFFER"),
        *("READONLY_BUFFER", "EMPTY_SET", "ADDITEMS", "FROZENSET", "PERSID", "BINPERSID"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
        *("EXT1", "EXT2", "EXT4"),
    }
    for name in refused - {"STOP"}:
        code = next(code for code, known in OPCODE_NAMES.items() if known == name)
        with pytest.raises(SnapshotFormatError, match=f"has the opcode {name} "):
            unpickle_plain(bytes([code]))


def test_the_reader_never_imports_pickle() -> None:
    """Not even by way of something else that it imports."""
    code = "import sys; before = set(sys.modules); import memgate.snapshots.unpickling;"
    code += "print('pickle' in set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02" + b"}" * 100_000 + b".", b"N" + b"2" * 100_000 + b".", b"N0" * 100_000 + b"."],
    ids=["many containers", "many references", "many steps"],
)
def test_a_budget_ends_what_would_take_too_much(data: bytes) -> None:
    """Memory and time are counted step by step."""
    with pytest.raises(SnapshotFormatError, match=r"more than 512\.00 KiB in memory"):
        unpickle_plain(data, max_document_bytes=512 * 1024)


@contextlib.contextmanager
def _bounded_memory(*, is_measured: bool) -> Iterator[None]:
    """See to it that little memory is taken; measuring takes four times as long."""
    if not is_measured:
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 * MIB


_MALICIOUS = sorted(make_malicious(Path("canary")))


def test_there_are_enough_malicious_pickles() -> None:
    """As many as were promised."""
    assert len(_MALICIOUS) >= 50


@pytest.mark.parametrize("name", _MALICIOUS)
def test_a_malicious_pickle_is_refused_and_nothing_is_run(name: str, tmp_path: Path) -> None:
    """In little memory, whatever it asks for."""
    canary = tmp_path / "canary"
    data = make_malicious(canary)[name]
    with _bounded_memory(is_measured=True), pytest.raises(SnapshotFormatError):
        read_histories(read_snapshot(io.BytesIO(data)))
    assert list(tmp_path.iterdir()) == []


def _mutate(data: bytes, chance: random.Random) -> bytes:
    """Change, drop, repeat or insert some bytes; or put in what would run something."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randrange(len(changed)), chance.randint(1, 40)
        match chance.randrange(6):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at:at] = chance.randbytes(size)
            case 4:
                changed[at:at] = chance.choice((b"cos\nsystem\n", b"R", b"\x93", b"\x81", b"b"))
            case _:
                changed[at : at + 1] = chance.choice(b"(.012abcdehjlopqrstu}]\x85\x94").to_bytes()
    return bytes(changed)


_ODD: tuple[Any, ...] = (None, True, -1, 0, 512, 2**40, 2**62, 2**70, 0.5, "x", [], {}, (1,), ())


def _mutate_values(data: bytes, chance: random.Random) -> bytes:
    """Change, drop, repeat or exchange some entries of the document."""
    document = pickle.loads(data)
    (trace,) = document["device_traces"]
    lists = [trace, document["segments"], *(one["blocks"] for one in document["segments"])]
    for _ in range(chance.randint(1, 6)):
        entries = chance.choice([one for one in lists if one])
        at, other = chance.randrange(len(entries)), chance.randrange(len(entries))
        match chance.randrange(5):
            case 0:
                del entries[at]
            case 1:
                entries[at], entries[other] = entries[other], entries[at]
            case 2:
                entries.insert(at, entries[other])
            case _:
                changed = dict(entries[at])
                name = chance.choice(list(changed))
                changed[name] = chance.choice([*_ODD, entries[other].get(name)])
                entries[at] = changed
    return pickle.dumps(document)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 20))]
)
def test_a_mutated_snapshot_is_an_answer_or_an_input_error(seed: int) -> None:
    """Fifty of each seed, in bytes and in values: nothing else is raised, and memory is bounded."""
    chance = random.Random(seed)
    files = sorted(REAL_SNAPSHOTS.glob("*.pickle.gz"))
    for _ in range(50):
        data = gzip.decompress(chance.choice(files).read_bytes())
        mutated = chance.choice((_mutate, _mutate_values))(data, chance)
        with contextlib.suppress(InputError), _bounded_memory(is_measured=seed % 5 == 4):
            estimate_snapshot(io.BytesIO(mutated), GpuTarget(gpu=CATALOGUE["rtx-4060"]))
