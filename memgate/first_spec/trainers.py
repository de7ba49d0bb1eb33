"""A library's Trainer in a script -> what ``convert`` makes of its arguments, and its defaults."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from memgate.convert import Beside, ConfigKind, convert, describe_conversion
from memgate.convert.hf import KNOWN
from memgate.errors import MemgateError
from memgate.first_spec.finding import Findings, from_call, from_option
from memgate.first_spec.source import Source, SourceCall

LENGTH = (
    *("max_seq_length", "max_seq_len", "max_length", "seq_length", "sequence_length", "seq_len"),
    *("block_size", "context_length", "cutoff_len", "model_max_length"),
)

#: what reads settings from a command line or a config that is not here
PARSERS = ("HfArgumentParser", "TrlParser")

#: what says most of it in one call
_ARGUMENTS = {
    "TrainingArguments": ConfigKind.HF,
    "Seq2SeqTrainingArguments": ConfigKind.HF,
    "SFTConfig": ConfigKind.TRL,
}

_TRAINERS = {
    "transformers.Trainer": ConfigKind.HF,
    "transformers.Seq2SeqTrainer": ConfigKind.HF,
    "trl.SFTTrainer": ConfigKind.TRL,
}

#: settings of a Trainer that scripts give a default of their own, in a dataclass of theirs
_OWN_DEFAULTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim"),
    *("bf16", "fp16", "gradient_checkpointing"),
)


def put_trainer(findings: Findings, source: Source) -> bool:
    """Let ``convert`` read the arguments of a library's Trainer; say whether there is one.

    Arguments that come from a command line or a config are not there: then its own defaults count.
    """
    arguments = source.called(*_ARGUMENTS)
    trainer = next((call for call in source.calls if call.name in _TRAINERS), None)
    kind = _find_kind(source, arguments, trainer)
    call = arguments or trainer or source.called(*PARSERS)
    if kind is None or call is None:
        return False
    _put_named_model(findings, trainer)
    _put_length(findings, source)
    has_default = kind is ConfigKind.TRL
    tokens = findings.spec.get("input", {}).get("sequence_length")
    model = findings.spec.get("model", {})
    # what is not known is filled in, so that the rest is read, and then left out
    beside = Beside(
        model=model.get("name") or "unknown",
        sequence_length=tokens or (None if has_default else 1),
    )
    document = dict(arguments.keywords) if arguments else _find_own_defaults(source)
    try:
        conversion = convert(document or {"output_dir": "."}, kind=kind, beside=beside)
    except MemgateError as error:
        findings.doubts.append(f"not certain: {from_call(call)}: {error.message}")
        return False
    if arguments:
        doubt_computed(findings, arguments, harmless=KNOWN.harmless)
    elif not source.called(*PARSERS) and trainer and _has_arguments(trainer):
        findings.doubts.append(
            f"not certain: the arguments of {from_call(trainer)} are made elsewhere; its defaults"
            " are in this spec"
        )
    said = describe_conversion(conversion)
    findings.remarks += [one for one in said if one.startswith("assumed")]
    findings.doubts += [one for one in said if not one.startswith("assumed")]
    left_out = {"model"} if tokens or has_default else {"model", "input"}
    for name, value in conversion.spec.items():
        if name not in left_out:
            findings.put(name, value, from_call(call))
    return True


def _find_kind(
    source: Source, arguments: SourceCall | None, trainer: SourceCall | None
) -> ConfigKind | None:
    """Return whose Trainer it is; SFTTrainer takes ``TrainingArguments``, too."""
    kinds = [_TRAINERS[trainer.name]] if trainer else []
    if arguments:
        kinds.append(_ARGUMENTS[arguments.last])
    if not kinds and source.called(*PARSERS):
        last = [name.rpartition(".")[2] for name in sorted(source.imported)]
        kinds = [_ARGUMENTS[name] for name in last if name in _ARGUMENTS]
    if ConfigKind.TRL in kinds:
        return ConfigKind.TRL
    return kinds[0] if kinds else None


def _put_named_model(findings: Findings, trainer: SourceCall | None) -> None:
    """``SFTTrainer`` loads a model by its name itself."""
    if trainer is None:
        return
    named = trainer.arguments[0] if trainer.arguments else trainer.keywords.get("model")
    if isinstance(named, str):
        findings.put("model", {"source": "transformers", "name": named}, from_call(trainer))


def _put_length(findings: Findings, source: Source) -> None:
    length = source.find(*LENGTH)
    if length is not None and isinstance(length.value, int):
        findings.put("input", {"sequence_length": length.value}, from_option(length))
    elif (tokens := find_tokenized(source)) is not None:
        findings.put("input", {"sequence_length": tokens}, f"max_length={tokens}")


def find_tokenized(source: Source) -> int | None:
    """Return the length that some call gives to a tokenizer, or a Trainer."""
    lengths = [call.keywords.get("max_length") for call in source.calls]
    return next((one for one in lengths if isinstance(one, int)), None)


def _find_own_defaults(source: Source) -> dict[str, Any]:
    found = {name: source.find(name) for name in _OWN_DEFAULTS}
    return {name: option.value for name, option in found.items() if option is not None}


def _has_arguments(trainer: SourceCall) -> bool:
    return len(trainer.arguments) > 1 or "args" in trainer.given


def doubt_computed(findings: Findings, call: SourceCall, *, harmless: Container[str] = ()) -> None:
    """Name the arguments of a call that are computed and can matter."""
    unknown = [name for name in sorted(call.given - call.keywords.keys()) if name not in harmless]
    findings.doubts += [f"not certain: {name} of {from_call(call)} is computed" for name in unknown]
