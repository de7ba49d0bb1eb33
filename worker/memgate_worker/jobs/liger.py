"""A model of transformers -> the same model with the layers of liger-kernel.

As transformers' own Trainer does it with ``use_liger_kernel``: the library's choice for the kind of
model, which fuses the output layer with its loss.
"""

from __future__ import annotations

from torch import nn

from memgate.errors import InputError
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.compiling import need_triton
from memgate_worker.jobs.libraries import need_library

_FIELD = "liger"


def take_liger_layers(model: nn.Module) -> None:
    """Have a model compute with the kernels of liger-kernel.

    Raises:
        InputError: if liger-kernel knows no such model.
        LibraryMissingError: if the runtime lacks it, or Triton.
        CompilerMissingError: if this machine has no C compiler, which Triton needs.
    """
    need_triton(_FIELD)
    liger = need_library("liger_kernel.transformers.monkey_patch", _FIELD)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    known = sorted(liger.MODEL_TYPE_TO_APPLY_LIGER_FN)
    if kind not in known:
        raise InputError.from_mistakes(
            Mistake(
                field=_FIELD,
                value=show_value(True),
                rule=f"liger-kernel has no layers for {type(model).__name__}",
                next_step=f"leave it out; it has some for the kinds {', '.join(known)}",
            )
        )
    liger._apply_liger_kernel_to_instance(model=model)
