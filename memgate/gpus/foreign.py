"""Accelerators that are not NVIDIA's: known by name, and refused with what that means.

A job there runs another build of PyTorch: another allocator, other kernels, other scratch memory. A
similar NVIDIA card is not suggested, since its answer would be for another job.
"""

from __future__ import annotations

import re

_ROCM = "an AMD GPU: PyTorch's ROCm allocator and kernels are not modelled"
_XPU = "an Intel GPU: PyTorch's XPU allocator and kernels are not modelled"
_MPS = "an Apple GPU: its memory is the machine's, and PyTorch's MPS allocator is not modelled"
_XLA = "a TPU: XLA plans its memory ahead, which is not modelled"
_GAUDI = "a Gaudi accelerator: Intel's bridge to PyTorch, and its allocator, are not modelled"
_NEURON = "an accelerator of AWS: the Neuron compiler plans its memory, which is not modelled"
_CANN = "an Ascend accelerator: Huawei's plugin for PyTorch, and its allocator, are not modelled"

#: in a name of which spaces, dashes and underscores are one space
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (meaning, re.compile(rf"(?:^| )(?:{pattern})(?:$| )"))
    for meaning, pattern in (
        (_ROCM, r"amd|instinct|radeon|rocm|gfx\d+[a-z]*"),
        (_ROCM, r"mi ?(?:25|50|60|100|200|210|250x?|300[acx]?|308x|325x|350x|355x)"),
        (_ROCM, r"(?:[bv]m\.gpu\.)?mi\d{3}x?\.\d|rx ?\d{4}(?: xtx?)?|g4ad\.\w+"),
        (_GAUDI, r"gaudi ?\d?|habana|hpu|hl 2\d\d|dl1\.\w+|dl2q\.\w+"),
        (_XPU, r"intel|arc [ab]\d{3}m?|arc pro|(?:max|flex) \d{3,4}|ponte vecchio|pvc|xpu"),
        (_MPS, r"apple|mps|m[1-9](?: (?:pro|max|ultra))?"),
        (_XLA, r"tpu|trillium|ironwood|ct\d\w*|(?:tpu ?)?v[2-7](?:e|p|x|litepod)?(?: \d+)?"),
        (_NEURON, r"trainium ?\d?|inferentia ?\d?|(?:trn|inf)\d\w*(?:\.\w+)?|neuron"),
        (_CANN, r"ascend|npu|910[abc]"),
    )
)


def find_foreign(text: str) -> str:
    """Say what a name is that no NVIDIA GPU has; nothing if it may be one."""
    name = re.sub(r"[\s_-]+", " ", text.lower()).strip()
    if "nvidia" in name:
        return ""
    found = (meaning for meaning, pattern in _KINDS if pattern.search(name))
    return next(found, "")
