"""A run of a diffusion model alone -> the doubt whether it was alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memgate.report import Reason

#: the note of a run without the models that make its inputs
ENCODERS_LEFT_OUT = "encoders_left_out"


def doubt_encoders(notes: Collection[str]) -> Iterator[Reason]:
    """Yield that the models which make latents and vectors of text may be on the GPU, too."""
    if ENCODERS_LEFT_OUT in notes:
        yield Reason(
            code="ENCODERS_NOT_COUNTED",
            message="the model was trained alone: an autoencoder that makes its latents, and text"
            " encoders, are not in the figures. If they are not on the GPU while it is trained,"
            " write 'precomputed: true' in 'input'; if they are, name what they take as memory that"
            " is already used, or ask about the script (memgate run)",
        )
