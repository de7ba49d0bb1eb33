"""A job spec while it is put together from a config: the parts that all tools have."""

from __future__ import annotations

from typing import Any

from memgate.convert.conversion import Assumption, Beside
from memgate.convert.fields import Config
from memgate.convert.optimizers import NOT_OURS, find_optimizer
from memgate.errors import InputError
from memgate.jobspec import Attention
from memgate.near_names import find_near

#: what transformers, and the tools that use it, call attention
_ATTENTION = {
    "flash_attention_2": Attention.FLASH,
    "flash_attention": Attention.FLASH,
    "fa2": Attention.FLASH,
    "sdpa": Attention.SDPA,
    "eager": Attention.EAGER,
    "disabled": Attention.EAGER,
    "auto": None,
}

_DTYPES = {
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "torch.float16": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "torch.float32": "fp32",
    "fp32": "fp32",
    "auto": "",
}


class Draft:
    """The fields of a spec that are known so far, and what was assumed for them."""

    def __init__(self, config: Config, beside: Beside) -> None:
        self.config = config
        self.beside = beside
        self.spec: dict[str, Any] = {}
        self.assumptions: list[Assumption] = []

    def put(self, field: str, value: Any) -> None:
        """Set a field; what is None or false is as if it was not given."""
        if value is not None and value is not False:
            self.spec[field] = value

    def assume(self, field: str, why: str, *, can_matter: bool = False) -> None:
        """Say what the config leaves open."""
        self.assumptions.append(Assumption(field=field, why=why, can_matter=can_matter))

    def put_model(self, *names: str) -> None:
        """Set the model by the first of these fields that is given.

        Raises:
            InputError: if there is none.
        """
        given = self.config.first(*names)
        name = self.beside.model or given
        if name is None:
            others = [one for one in self.config.names if one not in names]
            near = find_near(names[0], others, limit=1)
            step = f"write {near[0]!r} so, or add --model NAME" if near else "add --model NAME"
            raise InputError(f"{names[0]} is missing: nothing says which model; {step}")
        if not isinstance(name, str):
            raise self.config.wrong(names[0], name, "it must be the name of a model")
        self.spec["model"] = {"source": "transformers", "name": name}

    def put_length(self, *names: str, default: int | None = None) -> None:
        """Set the length of sequences by the first of these fields that is given.

        Raises:
            InputError: if there is none, and the tool has no default.
        """
        given = [length for length in map(self.config.whole, names) if length is not None]
        length = self.beside.sequence_length or (given[0] if given else default)
        if length is None:
            raise InputError(
                f"{names[0]} is not given: the data decides how long sequences are; add"
                " --sequence-length N, the longest that occurs"
            )
        if not given and self.beside.sequence_length is None:
            self.assume("input", f"{length} tokens: the tool's own default of {names[0]}")
        self.spec["input"] = {"sequence_length": length}

    def put_batch(self, name: str, *, default: int, accumulation: str) -> None:
        """Set the batch of one device, and how many there are for a step."""
        if name not in self.config:
            self.assume("batch_size", f"{default}: the tool's own default of {name}")
        self.spec["batch_size"] = self.config.whole(name, default)
        self.put("gradient_accumulation_steps", self._unless(1, accumulation))

    def _unless(self, usual: int, name: str) -> int | None:
        given = self.config.get(name)
        value = None if given == "auto" else self.config.whole(name)
        return None if value == usual else value

    def put_clipping(self, name: str, *, default: float | None) -> None:
        """Set the norm of gradients; 0 is none."""
        self.put("clip_grad_norm", self.config.number(name, default))

    def put_optimizer(self, name: str, *, default: str) -> None:
        """Set the optimizer by the tool's name for it; an unknown one keeps its name."""
        given = self.config.get(name, default)
        if not isinstance(given, str):
            raise self.config.wrong(name, given, "it must be the name of an optimizer")
        found, assumed = find_optimizer(given)
        self.assumptions += assumed
        if found is None:
            self.config.refuse(name, NOT_OURS)
        self.spec["optimizer"] = found or {"name": given}

    def put_attention(self, *names: str) -> None:
        """Set how attention is computed, by what transformers calls it."""
        for name in names:
            given = self.config.get(name)
            if given is None:
                continue
            if str(given) not in _ATTENTION:
                self.config.refuse(name, "an attention that memgate does not have")
            else:
                self.put("attention", _ATTENTION[str(given)])

    def find_dtype(self, *names: str) -> str | None:
        """Return the type that weights are loaded in: "" if that of the files, None if not said."""
        given = self.config.first(*names)
        if given is None:
            return None
        if str(given) not in _DTYPES:
            rule = f"it must be one of {', '.join(_DTYPES)}"
            raise self.config.wrong(names[0], given, rule)
        return _DTYPES[str(given)]

    def put_compile(self, name: str, **others: str) -> None:
        """Set ``compile``; ``others`` are torch's arguments and the fields that have them."""
        if self.config.flag(name):
            given = {one: self.config.get(field) for one, field in others.items()}
            self.put("compile", {one: value for one, value in given.items() if value} or True)

    def put_workers(self, strategy: str, why: str, **more: Any) -> None:
        """Set how the job is divided, if it is known over how many GPUs; ``more`` are fields."""
        size = self.beside.world_size
        if size is None:
            told = (
                f"left out: {why} divides the job over GPUs whose number is not known, as the"
                " launcher decides it; this spec is for one GPU without it; add --world-size N"
            )
            self.assume("distributed", told, can_matter=True)
            return
        self.spec["distributed"] = {"strategy": strategy, "world_size": size, **more}

    def offload(self, what: str) -> None:
        """Say that something is kept in the host's memory: ``optimizer`` or ``activations``."""
        self.spec["offload"] = self.spec.get("offload", {}) | {what: True}
