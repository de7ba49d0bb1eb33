"""Stored runs: what is read back is that run, and anything else is absent."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.report import Reason
from memgate.run_key import EngineIdentity, RunKey, RuntimeIdentity
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timelines import pack, unpack
from tests.builders import mib

MADE_BY = EngineIdentity(version="1", revision=1, runtime=RuntimeIdentity(name="torch-2.14"))
KEY = RunKey.of(
    parse_job_spec(
        {
            "model": {"source": "torchvision", "name": "vgg16"},
            "input": {"shape": [3, 8, 8]},
            "batch_size": 8,
        }
    ),
    find_gpu("t4"),
    engine="phantom",
    made_by=MADE_BY,
)
TRACED = TracedJob(
    timeline=Timeline(
        events=(Alloc(0, mib(3)), Free(0)), labels=(Label(Category.BATCH, ""),), diagnostics={}
    ),
    engine="phantom",
    runtime="torch-2.14",
    versions={"torch": "2.14.1"},
    alloc_conf="",
    num_parameters=1,
    notes=(Reason(code="A", message="note"),),
    seconds=0.5,
)


def _changed(change: Any) -> bytes:
    document = json.loads(zlib.decompress(pack(KEY, TRACED)))
    change(document)
    return zlib.compress(json.dumps(document).encode())


def test_a_run_is_read_back_as_it_was() -> None:
    """Events, labels, notes: everything that an answer is made of."""
    assert unpack(KEY, pack(KEY, TRACED)) == TRACED


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"no zlib",
        pack(KEY, TRACED)[:-7],
        zlib.compress(b'{"run": "'),
        zlib.compress(b"\xff\xfe"),
        zlib.compress(b"[]"),
        _changed(lambda document: document.pop("run")),
        _changed(lambda document: document["traced"].pop("alloc_conf")),
        _changed(lambda document: document["traced"]["timeline"].pop("events")),
        _changed(lambda document: document["traced"]["notes"][0].pop("code")),
        _changed(lambda document: document["traced"].update(seconds="soon")),
        # as version 0.1 stored it: the traced job alone
        zlib.compress(
            json.dumps(json.loads(zlib.decompress(pack(KEY, TRACED)))["traced"]).encode()
        ),
    ],
    ids=[
        *("nothing", "no zlib", "cut off", "half a document", "no text", "another kind"),
        *("no run", "lacks a field", "lacks events", "half a note", "wrong type", "0.1"),
    ],
)
def test_a_record_that_cannot_be_read_is_absent(packed: bytes) -> None:
    """Never an error: the job is run again."""
    assert unpack(KEY, packed) is None


@pytest.mark.parametrize(
    "made_by",
    [
        replace(MADE_BY, version="0"),
        replace(MADE_BY, revision=0),
        replace(MADE_BY, layout=MADE_BY.layout - 1),
        replace(MADE_BY, runtime=replace(MADE_BY.runtime, cudnn="9")),
    ],
    ids=["older version", "older revision", "older layout", "other cuDNN"],
)
def test_a_record_of_another_identity_is_absent(made_by: EngineIdentity) -> None:
    """Never replayed, even if it is found under the name of this run."""
    foreign = pack(replace(KEY, made_by=made_by), TRACED)

    assert unpack(KEY, foreign) is None
