"""A ``PYTORCH_ALLOC_CONF`` string -> ``AllocatorConfig``, read as torch 2.14.1 reads it.

PyTorch is lenient in odd ways and strict in others, and what it reads must be read the same here:
separators are skipped unchecked, ``12abc`` is 12, ``-1`` is huge, ``true`` is refused. The real
parser's answers are in tests/data/alloc_conf.jsonl, and a test compares ours with each of them.

Upstream: c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.{h,cpp} of v2.14.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memgate.allocator.config import POWER2_INTERVALS, UNLIMITED, AllocatorConfig
from memgate.allocator.sizes import EXPANDABLE_GRANULARITY, MIN_LARGE_ALLOC
from memgate.errors import AllocatorConfigError, UnsupportedAllocatorError
from memgate.mistakes import Mistake, suggest
from memgate.near_names import find_near
from memgate.units import MIB, clip

_LARGE_SEGMENT_KEY = "large_segment_size_mb"


def parse_alloc_conf(text: str) -> AllocatorConfig:
    """Read a setting string such as ``max_split_size_mb:64,expandable_segments:True``.

    Raises:
        AllocatorConfigError: with the key and the text PyTorch would stop with.
        UnsupportedAllocatorError: if PyTorch accepts it, but the simulator does not model it.
    """
    settings = _cut_into_settings(text)
    config = AllocatorConfig()
    # Upstream reads this key first, wherever it is: the minima of others depend on it.
    for setting in settings:
        if setting.key == _LARGE_SEGMENT_KEY:
            size = _large_segment_size(setting)
            config = replace(config, large_segment_size=size, max_non_split_rounding_size=size)
    for setting in settings:
        if setting.key == _LARGE_SEGMENT_KEY:
            continue
        if setting.key not in _SETTINGS:
            raise _unknown_key(setting)
        field, read = _SETTINGS[setting.key]
        value = read(setting, config)
        if field:
            config = replace(config, **{field: value})
    if config.expandable_segments and config.large_segment_size % EXPANDABLE_GRANULARITY:
        raise AllocatorConfigError(
            f"{_quote(text)}, {_LARGE_SEGMENT_KEY}: with expandable_segments it is the page size"
            " and must be a multiple of 2 (PyTorch stops at the first allocation above 1 MiB with:"
            " CUDA driver error: invalid argument)"
        )
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One key and the tokens of its value; ``[`` and ``]`` included if it is a list."""

    key: str
    value: tuple[str, ...]
    #: position of the value among all tokens, which PyTorch shows in one of its messages
    at: int
    #: the whole setting string, for messages
    text: str

    def error(self, problem: str) -> AllocatorConfigError:
        return AllocatorConfigError(f"{_quote(self.text)}, {self.key}: {problem}")


def _unknown_key(setting: _Setting) -> AllocatorConfigError:
    known = sorted([*_SETTINGS, _LARGE_SEGMENT_KEY])
    rule = f"Unrecognized key {clip(setting.key)} in CUDA allocator config"
    near = find_near(setting.key, known)
    step = suggest(near) or f"known keys: {', '.join(known)}"
    mistake = Mistake(
        field="allocator", value=clip(setting.text), rule=rule, next_step=step, near=near
    )
    return AllocatorConfigError(f"{_quote(setting.text)}: {rule}; {step}", (mistake,))


def _quote(text: str) -> str:
    return f"allocator setting {clip(text)}"


def _cut_into_settings(text: str) -> list[_Setting]:
    """Cut at ``,:[]``, white space dropped (upstream's ``ConfigTokenizer``).

    As upstream, the tokens where ``:`` and ``,`` should be are skipped unchecked.
    """
    tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s", "", text))
    settings = []
    at = 0
    while at < len(tokens):
        key = tokens[at]
        begin = at + 2
        if begin >= len(tokens):
            raise AllocatorConfigError(
                f"{_quote(text)}, {clip(key)}: the value is missing, write key:value"
                " (PyTorch stops with: Index out of bounds in ConfigTokenizer)"
            )
        end = begin
        if tokens[begin] == "[":
            if "]" not in tokens[begin:]:
                raise AllocatorConfigError(
                    f"{_quote(text)}, {key}: Expected closing bracket ']' in ConfigTokenizer"
                    " but reached end of config"
                )
            end = tokens.index("]", begin)
        value = tuple(tokens[begin : end + 1])
        settings.append(_Setting(key=key, value=value, at=begin, text=text))
        at = end + 2
    return settings


# -- values --------------------------------------------------------------------------------------


def _to_size_t(setting: _Setting, token: str) -> int:
    """Read a whole number as C++'s stoull does: the leading digits count, a minus wraps."""
    match = re.match(r"[+-]?[0-9]+", token)
    if match is None:
        raise setting.error(f"{clip(token)} is not a whole number (PyTorch stops with: stoull)")
    digits = match[0].lstrip("+-0")
    if len(digits) > 20 or int(digits or "0") > UNLIMITED:
        raise setting.error(f"{clip(token)} is out of range (PyTorch stops with: stoull)")
    sign = -1 if match[0].startswith("-") else 1
    return sign * int(digits or "0") % (UNLIMITED + 1)


def _to_double(setting: _Setting) -> float:
    """Read a number as C++'s stod does: what follows the number is ignored."""
    token = setting.value[0]
    match = re.match(_HEX_NUMBER, token, re.IGNORECASE)
    if match is not None:
        return float.fromhex(match[0])
    match = re.match(_NUMBER, token, re.IGNORECASE)
    if match is None:
        raise setting.error(f"{clip(token)} is not a number (PyTorch stops with: stod)")
    value = float(match[0])
    vanished = value == 0.0 and re.search("[1-9]", match[0].lower().partition("e")[0])
    exploded = math.isinf(value) and "inf" not in match[0].lower()
    if vanished or exploded:
        raise setting.error(f"{clip(token)} is out of range (PyTorch stops with: stod)")
    return value


_NUMBER = r"[+-]?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|inf|nan)"
_HEX_NUMBER = r"[+-]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?[0-9]{1,4})?"


def _flag(setting: _Setting, _: AllocatorConfig) -> bool:
    token = setting.value[0]
    if token not in ("True", "False"):
        raise setting.error(
            f"Expected 'True' or 'False' at index {setting.at} in ConfigTokenizer but got '{token}'"
        )
    return token == "True"


def _count(setting: _Setting, _: AllocatorConfig) -> int:
    return _to_size_t(setting, setting.value[0])


def _is_power2(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _saturated_mib(size_mb: int) -> int:
    return min(size_mb, UNLIMITED // MIB) * MIB


# -- settings ------------------------------------------------------------------------------------


def _large_segment_size(setting: _Setting) -> int:
    size_mb = _to_size_t(setting, setting.value[0])
    if size_mb <= MIN_LARGE_ALLOC // MIB:
        raise setting.error(
            f"CachingAllocator option {setting.key} must be > {MIN_LARGE_ALLOC // MIB} MB"
        )
    return _saturated_mib(size_mb)


def _size_of_a_large_segment_or_more(setting: _Setting, config: AllocatorConfig) -> int:
    size_mb = _to_size_t(setting, setting.value[0])
    minimum_mb = config.large_segment_size // MIB
    if size_mb < minimum_mb:
        raise setting.error(
            f"CachingAllocator option {setting.key} too small, must be >= {minimum_mb}"
        )
    return _saturated_mib(size_mb)


def _garbage_collection_threshold(setting: _Setting, _: AllocatorConfig) -> float:
    threshold = _to_double(setting)
    if not 0.0 < threshold < 1.0:
        raise setting.error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
    return threshold


def _per_process_memory_fraction(setting: _Setting, _: AllocatorConfig) -> float:
    fraction = _to_double(setting)
    if not 0.0 <= fraction <= 1.0:
        raise setting.error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
    return fraction


def _roundup_power2_divisions(setting: _Setting, config: AllocatorConfig) -> tuple[int, ...]:
    if setting.value[0] == "[":
        return _divisions_by_size(setting, config)
    divisions = _to_size_t(setting, setting.value[0])
    if not _is_power2(divisions):
        raise setting.error("For roundups, the divisions has to be power of 2")
    return (divisions,) * POWER2_INTERVALS


def _divisions_by_size(setting: _Setting, config: AllocatorConfig) -> tuple[int, ...]:
    """Read ``[256:1,512:2,>:8]``: sizes in MiB, each with its number of divisions.

    The first size covers all smaller ones too, ``>`` all above the size before it; a size between
    two named ones keeps what it had. These are upstream's rules, gaps and all.
    """
    by_interval = list(config.roundup_power2_divisions)
    last_interval = 0
    is_first = True
    inside = setting.value[1:-1]
    for at in range(0, len(inside), 4):
        size, *rest = inside[at : at + 3]
        if len(rest) < 2:
            raise setting.error(f"{size!r} has no number of divisions, write size:divisions")
        divisions = _to_size_t(setting, rest[1])
        if divisions != 0 and not _is_power2(divisions):
            raise setting.error(
                "For roundups, the divisions has to be power of 2 or 0 to disable roundup"
            )
        if size == ">":
            num_above = POWER2_INTERVALS - 1 - last_interval
            by_interval[last_interval + 1 :] = [divisions] * num_above
            continue
        size_mb = _to_size_t(setting, size)
        if not _is_power2(size_mb):
            raise setting.error("For roundups, the intervals have to be power of 2")
        last_interval = min(size_mb.bit_length() - 1, POWER2_INTERVALS - 1)
        if is_first:
            by_interval[:last_interval] = [divisions] * last_interval
            is_first = False
        by_interval[last_interval] = divisions
    return tuple(by_interval)


def _backend(setting: _Setting, _: AllocatorConfig) -> None:
    if setting.value[0] == "cudaMallocAsync":
        raise UnsupportedAllocatorError(
            f"{_quote(setting.text)}, {setting.key}: cudaMallocAsync is not simulated; only native,"
            " PyTorch's default, is, and would be the answer for another setting"
        )
    if setting.value[0] != "native":
        raise setting.error("Unknown allocator backend, options are native and cudaMallocAsync")


def _register_threads(setting: _Setting, _: AllocatorConfig) -> None:
    threads = _to_size_t(setting, setting.value[0])
    if not _is_power2(threads):
        raise setting.error(f"Number of register threads has to be power of 2, got {threads}")
    if threads > 128:
        raise setting.error(
            f"Number of register threads should be less than or equal to 128, got {threads}"
        )


def _reserve_segment_size(setting: _Setting, _: AllocatorConfig) -> None:
    if _to_size_t(setting, setting.value[0]) == 0:
        raise setting.error("Pinned reserve segment size has to be greater than 0")


#: key -> the field it sets, and how its value is read. No field: the setting concerns host memory,
#: locks or graph capture, so it is checked as PyTorch checks it and has no effect on the device.
_SETTINGS: dict[str, tuple[str | None, Callable[[_Setting, AllocatorConfig], Any]]] = {
    "backend": (None, _backend),
    "expandable_segments": ("expandable_segments", _flag),
    "garbage_collection_threshold": (
        "garbage_collection_threshold",
        _garbage_collection_threshold,
    ),
    "graph_capture_record_stream_reuse": (None, _flag),
    "max_non_split_rounding_mb": (
        "max_non_split_rounding_size",
        _size_of_a_large_segment_or_more,
    ),
    "max_split_size_mb": ("max_split_size", _size_of_a_large_segment_or_more),
    "per_process_memory_fraction": (
        "per_process_memory_fraction",
        _per_process_memory_fraction,
    ),
    "pinned_free_catch_all": (None, _flag),
    "pinned_max_cached_size_mb": (None, _count),
    "pinned_max_round_threshold_mb": (None, _count),
    "pinned_num_register_threads": (None, _register_threads),
    "pinned_reserve_segment_size_mb": (None, _reserve_segment_size),
    "pinned_use_background_threads": (None, _flag),
    "pinned_use_cuda_host_register": (None, _flag),
    "pinned_use_hip_host_register": (None, _flag),
    "release_lock_on_cudamalloc": (None, _flag),
    "release_lock_on_hipmalloc": (None, _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _roundup_power2_divisions),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _flag),
}
