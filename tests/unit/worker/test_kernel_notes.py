"""Notes of a run on the phantom, in words."""

from __future__ import annotations

from memgate_worker.engines.phantom.kernels import (
    FLASH_ATTN_OURS,
    KERNELS_TIMED,
    RECURRENT,
    doubt_other_kernels,
    note_flash_attention,
)


def test_each_note_has_its_reason() -> None:
    """What was not timed or not cuDNN is a doubt; whose flash attention ran is not."""
    notes = (KERNELS_TIMED, FLASH_ATTN_OURS, RECURRENT)

    assert [reason.code for reason in doubt_other_kernels(notes)] == [
        "RECURRENT_LAYERS",
        "KERNELS_NOT_TIMED",
    ]
    assert [reason.code for reason in note_flash_attention(notes)] == ["FLASH_ATTN_STAND_IN"]


def test_nothing_is_said_about_other_runs() -> None:
    """Most have no note."""
    assert [*doubt_other_kernels(()), *note_flash_attention(())] == []
