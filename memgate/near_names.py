"""A name that is not in a list -> the names in the list that may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

#: comparing takes longer for longer names, and no name is longer than this
_MAX_LENGTH = 100

#: how alike two names must be, of 1
_LIKENESS = 0.75

#: fewer letters than this begin too many names
_SHORTEST_START = 3

#: what other programs call it, without case and punctuation -> what it may be called here
_ELSEWHERE = {
    "r": ("rank",),
    "lorar": ("rank",),
    "lorarank": ("rank",),
    "loraalpha": ("alpha",),
    "loradropout": ("dropout",),
    "loratarget": ("target_modules",),
    "loratargetmodules": ("target_modules",),
    "targets": ("target_modules",),
    "adapter": ("lora",),
    "peft": ("lora",),
    "huggingface": ("hf", "transformers"),
    "hf": ("transformers",),
    "transformers": ("hf",),
    "sft": ("trl-sft",),
    "sfttrainer": ("trl-sft",),
    "trl": ("trl-sft",),
    "pytorchlightning": ("lightning",),
    "pytorch": ("plain",),
    "4bit": ("nf4", "fp4"),
    "bnb4bit": ("nf4", "fp4"),
    "qlora": ("nf4",),
    "loadin4bit": ("quantization",),
    "loadin8bit": ("quantization",),
    "8bit": ("int8", "fp8"),
    "bnb8bit": ("int8",),
    "bits": ("method",),
    "deepspeed": ("zero1", "zero2", "zero3"),
    "zero": ("zero1", "zero2", "zero3"),
    "deepspeedzero1": ("zero1",),
    "deepspeedzero2": ("zero2",),
    "deepspeedzero3": ("zero3",),
    "deepspeedstage1": ("zero1",),
    "deepspeedstage2": ("zero2",),
    "deepspeedstage3": ("zero3",),
    "numgpus": ("world_size",),
    "ngpus": ("world_size",),
    "nproc": ("world_size",),
    "nprocpernode": ("gpus_per_node",),
    "bs": ("batch_size",),
    "perdevicetrainbatchsize": ("batch_size",),
    "trainbatchsize": ("batch_size",),
    "microbatchsize": ("batch_size",),
    "perdeviceevalbatchsize": ("eval",),
    "gradaccum": ("gradient_accumulation_steps",),
    "accumulation": ("gradient_accumulation_steps",),
    "maxgradnorm": ("clip_grad_norm",),
    "blocksize": ("sequence_length",),
    "maxlength": ("sequence_length",),
    "maxseqlen": ("sequence_length",),
    "cutofflen": ("sequence_length",),
    "contextlength": ("sequence_length",),
    "imagesize": ("shape",),
    "amp": ("precision", "amp-bf16", "amp-fp16"),
    "dtype": ("precision",),
    "mixedprecision": ("precision", "amp-bf16", "amp-fp16"),
    "half": ("fp16",),
    "float16": ("fp16", "amp-fp16"),
    "bfloat16": ("bf16", "amp-bf16"),
    "float32": ("fp32",),
    "optim": ("optimizer",),
    "adamwtorch": ("AdamW",),
    "adamwtorchfused": ("AdamW",),
    "adamwhf": ("AdamW",),
    "adamw8bit": ("bitsandbytes.AdamW8bit",),
    "adamwbnb8bit": ("bitsandbytes.AdamW8bit",),
    "pagedadamw8bit": ("bitsandbytes.PagedAdamW8bit",),
    "maxnewtokens": ("generate",),
    "activationcheckpointing": ("gradient_checkpointing",),
    "torchcompile": ("compile",),
    "attnimplementation": ("attention",),
    "flashattention2": ("flash",),
    "flashattn": ("flash", "attention"),
}


def find_near(
    name: object, known: Iterable[str], *, limit: int = 3, likeness: float = _LIKENESS
) -> tuple[str, ...]:
    """Return the known names that are most like a wrong one, the most similar first.

    Case and the punctuation between words do not count: ``rtx3060`` is ``RTX 3060``. Where nothing
    is like it as a whole, names that begin with it are returned, the shortest first, or those that
    differ in one letter or in letters for digits. A name that other programs have for something
    that is known comes first of all.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_LENGTH:
        return ()
    wanted = loosen(name)
    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(loosen(one), []).append(one)
    if wanted in spellings:
        return tuple(spellings[wanted][:limit])
    meant = [one for one in _ELSEWHERE.get(wanted, ()) if one in spellings.get(loosen(one), ())]
    if meant:
        return tuple(meant[:limit])
    like = get_close_matches(wanted, spellings, limit, likeness)
    # letters in another order are the likeliest slip, and are not that much alike: lroa, lora
    like.sort(key=lambda text: sorted(text) != sorted(wanted))
    if not like and len(wanted) >= _SHORTEST_START:
        like = sorted((text for text in spellings if text.startswith(wanted)), key=len)
        like = like or sorted((text for text in spellings if _looks_like(wanted, text)), key=len)
        like = like or [text for text in spellings if _is_one_letter_off(wanted, text)]
    return tuple(one for text in like for one in spellings[text])[:limit]


def _looks_like(name: str, other: str) -> bool:
    """Say whether a name begins another, but for letters instead of digits: h1oo, h100-80."""
    return other.translate(_DIGITS).startswith(name.translate(_DIGITS))


#: letters that are written for digits
_DIGITS = str.maketrans("oil", "011")


def _is_one_letter_off(name: str, other: str) -> bool:
    """Say whether two names differ in one letter: much of a short one, as nf5 is of nf4."""
    pairs = zip(name, other, strict=False)
    return len(name) == len(other) and sum(mine != theirs for mine, theirs in pairs) == 1


def loosen(name: str) -> str:
    """Return a name in lower case, without the punctuation between its words."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def list_choices(names: Iterable[str]) -> str:
    """Write names for a sentence: 'a', 'a' or 'b', 'a', 'b' or 'c'."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last
