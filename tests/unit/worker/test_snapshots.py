"""A memory snapshot and a GPU: the worst device decides."""

from __future__ import annotations

import io
import pickle

from memgate.gpus import parse_gpu
from memgate.units import GIB
from memgate_worker.snapshots import estimate_snapshot
from tests.snapshots import BASE, make_block, make_document, make_segment


def _file() -> io.BytesIO:
    """Make a snapshot of three devices, the second with most."""
    segments = [
        make_segment(make_block(size * GIB), address=BASE, device=device)
        for device, size in enumerate((1, 30, 2))
    ]
    return io.BytesIO(pickle.dumps(make_document(segments)))


def test_of_several_devices_the_worst_decides() -> None:
    """Each is answered, and told."""
    said = estimate_snapshot(_file(), parse_gpu("rtx-3060")).estimate

    assert said.decision == "reject"
    assert said.peak_reserved_bytes == 30 * GIB
    told = said.reasons[-1]
    assert told.code == "SEVERAL_DEVICES"
    assert "device 0 may not fit on rtx-3060, needs 1.66 GiB; device 1 does not fit" in told.message
    assert "the answer for device 1, the worst of them" in told.message


def test_a_device_can_be_picked() -> None:
    """Then the others are not looked at."""
    said = estimate_snapshot(_file(), parse_gpu("rtx-3060"), device=2).estimate

    assert (said.decision, said.peak_reserved_bytes) == ("uncertain", 2 * GIB)
    assert "SEVERAL_DEVICES" not in [reason.code for reason in said.reasons]
    assert set(said.timings_ms) == {"run", "trace", "replay", "total"}


def test_a_device_that_only_kept_memory_is_answered() -> None:
    """Nothing happened after it was cached, and nothing of it is in use."""
    segment = make_segment(make_block(3 * GIB, state="inactive"))
    file = io.BytesIO(pickle.dumps(make_document([segment])))

    said = estimate_snapshot(file, parse_gpu("rtx-3060")).estimate

    assert said.peak_reserved_bytes == 3 * GIB
    assert said.breakdown["fragmentation"] == 3 * GIB
