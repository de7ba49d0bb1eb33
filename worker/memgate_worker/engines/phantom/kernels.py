"""Notes of a run on the phantom -> reasons: where other kernels ran than would on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memgate.report import Reason

#: the note of a run in which inductor chose kernels by their times
KERNELS_TIMED = "kernels_timed"

#: that of one whose recurrent layers were not cuDNN's
RECURRENT = "recurrent"

#: that of one that computed attention with our stand-in for flash-attn
FLASH_ATTN_OURS = "flash_attn_ours"


def note_flash_attention(notes: Collection[str]) -> Iterator[Reason]:
    """Yield whose flash attention ran."""
    if FLASH_ATTN_OURS in notes:
        yield Reason(
            code="FLASH_ATTN_STAND_IN",
            message="the runtime has no flash-attn, so attention took the memory that version 2.8.3"
            " of it takes, by memgate's stand-in",
        )


def doubt_other_kernels(notes: Collection[str]) -> Iterator[Reason]:
    """Yield that PyTorch's own kernels ran, or were chosen without knowing their times."""
    if RECURRENT in notes:
        yield Reason(
            code="RECURRENT_LAYERS",
            message="recurrent layers (nn.LSTM, nn.GRU, nn.RNN) ran by PyTorch's own kernels: only"
            " cuDNN knows what it keeps for the backward pass, and that may be more or less",
        )
    if KERNELS_TIMED in notes:
        yield Reason(
            code="KERNELS_NOT_TIMED",
            message="torch.compile chooses among kernels by their times here (max-autotune), and"
            " nothing can be timed on a GPU that is not there; PyTorch's own kernels were taken,"
            " and with others the job takes other memory",
        )
