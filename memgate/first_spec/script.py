"""What a training script says -> a first job spec, with where each field is from."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from memgate.convert import Beside, ConfigKind, convert, describe_conversion
from memgate.convert.hf import KNOWN
from memgate.errors import MemgateError
from memgate.first_spec.by_hand import put_accumulation, put_heads
from memgate.first_spec.finding import Findings
from memgate.first_spec.source import Option, Source, SourceCall, read_source
from memgate.first_spec.unread import find_unread
from memgate.jobspec import JobSpec

_BATCH = (
    *("batch_size", "per_device_train_batch_size", "train_batch_size", "micro_batch_size"),
    *("batch", "bs", "batchsize"),
)
_LENGTH = (
    *("max_seq_length", "max_seq_len", "max_length", "seq_length", "sequence_length", "seq_len"),
    *("block_size", "context_length", "cutoff_len", "model_max_length"),
)
_SIZE = ("img_size", "image_size", "crop_size", "input_size", "resolution", "imgsz")
_STEPS = ("gradient_accumulation_steps", "accumulation_steps", "grad_accum_steps", "grad_accum")
_MODEL = ("model_name_or_path", "model_name", "model", "arch", "model_id", "base_model")
_RESIZING = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "Resize")

#: a Trainer of a library, which says most of it in one call
_ARGUMENTS = {
    "TrainingArguments": ConfigKind.HF,
    "Seq2SeqTrainingArguments": ConfigKind.HF,
    "SFTConfig": ConfigKind.TRL,
}

_HALF = {"torch.float16": "fp16", "torch.half": "fp16", "torch.bfloat16": "bf16"}

#: arguments of an adapter that change no memory
_SCALES = ("lora_alpha", "task_type", "bias", "inference_mode")

#: what reads settings from a command line or a config that is not here
_PARSERS = ("HfArgumentParser", "TrlParser")

#: classes of these come with a configuration of their own: ``BertForTokenClassification(config)``
_HEADS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForSequenceClassification")


def read_script(text: str) -> Findings:
    """Read a script; nothing of it is executed.

    Raises:
        InputError: if it is not Python.
    """
    source = read_source(text)
    findings = Findings()
    _put_model(findings, source)
    put_heads(findings, source)
    if parser := source.called(*_PARSERS):
        findings.doubts.append(
            f"not certain: {_from_call(parser)} reads settings from a command line or a config;"
            " if it is a config: memgate init CONFIG"
        )
    find_unread(findings, source)
    if _put_trainer(findings, source):
        _put_adapter(findings, source)
        return findings
    _put_input(findings, source)
    _put_option(findings, source, "batch_size", _BATCH)
    loader = source.called("DataLoader")
    if loader and isinstance(size := loader.keywords.get("batch_size"), int):
        findings.put("batch_size", size, _from_call(loader))
    accelerator = source.called("Accelerator")
    if accelerator and isinstance(
        steps := accelerator.keywords.get("gradient_accumulation_steps"), int
    ):
        findings.put("gradient_accumulation_steps", steps, _from_call(accelerator))
    _put_option(findings, source, "gradient_accumulation_steps", _STEPS, least=2)
    put_accumulation(findings, source.accumulation)
    _put_optimizer(findings, source)
    _put_precision(findings, source)
    _put_adapter(findings, source)
    _put_switches(findings, source)
    return findings


def _from_call(call: SourceCall) -> str:
    return f"{call.last}(...) in line {call.line}"


def _from_option(option: Option) -> str:
    return f"the default of {option.shown}, line {option.line}"


def _put_option(
    findings: Findings, source: Source, field: str, names: tuple[str, ...], *, least: int = 1
) -> None:
    option = source.find(*names)
    if option is not None and isinstance(option.value, int) and option.value >= least:
        findings.put(field, option.value, _from_option(option))


def _put_model(findings: Findings, source: Source) -> None:
    made = [(call, model) for call in source.calls if (model := _model_of(call))]
    for call, model in made:
        findings.put("model", model, _from_call(call))
    others = {str(model.get("name", model.get("class"))) for _, model in made}
    if len(others) > 1:
        findings.doubts.append(
            f"not certain: model: the script makes several: {', '.join(sorted(others))}"
        )
    option = source.find(*_MODEL)
    if option is not None and isinstance(option.value, str):
        model = {"source": _guess_library(source), "name": option.value}
        findings.put("model", model, _from_option(option))


def _model_of(call: SourceCall) -> dict[str, Any] | None:
    library, last = call.name.partition(".")[0], call.last
    first = call.arguments[0] if call.arguments else call.keywords.get("name")
    if call.name == "timm.create_model" or call.name == "torchvision.models.get_model":
        named = first if isinstance(first, str) else call.keywords.get("model_name")
        return {"source": library, "name": named} if named else None
    if call.name.startswith("torchvision.models.") and last.islower():
        return {"source": library, "name": last} | _classes(call)
    if last == "from_pretrained" and ("Model" in call.name or "For" in call.name):
        named = first or call.keywords.get("pretrained_model_name_or_path")
        return {"source": "transformers", "name": named} if isinstance(named, str) else None
    if last.endswith(_HEADS) and call.name.startswith("transformers."):
        return {"source": "transformers", "class": last}
    return None


def _classes(call: SourceCall) -> dict[str, Any]:
    number = call.keywords.get("num_classes")
    return {"kwargs": {"num_classes": number}} if isinstance(number, int) else {}


def _guess_library(source: Source) -> str:
    """Return whose the name of an option is: that of the library of which something is called."""
    called = {call.name.partition(".")[0] for call in source.calls}
    return next((one for one in ("timm", "torchvision") if one in called), "transformers")


def _put_trainer(findings: Findings, source: Source) -> bool:
    """Let ``convert`` read the arguments of a library's Trainer, if the script has one."""
    call = source.called(*_ARGUMENTS)
    if call is None:
        return False
    model = findings.spec.get("model", {})
    length = source.find(*_LENGTH)
    tokens = length.value if length and isinstance(length.value, int) else _tokenized(source)
    # what is not known is filled in, so that the rest is read, and then left out
    beside = Beside(model=model.get("name") or "unknown", sequence_length=tokens or 1)
    try:
        document = dict(call.keywords) or {"output_dir": "."}
        conversion = convert(document, kind=_ARGUMENTS[call.last], beside=beside)
    except MemgateError as error:
        findings.doubts.append(f"not certain: {_from_call(call)}: {error.message}")
        return False
    _doubt_computed(findings, call, harmless=KNOWN.harmless)
    said = describe_conversion(conversion)
    findings.remarks += [one for one in said if one.startswith("assumed")]
    findings.doubts += [one for one in said if not one.startswith("assumed")]
    left_out = {"model"} if tokens else {"model", "input"}
    for name, value in conversion.spec.items():
        if name not in left_out:
            findings.put(name, value, _from_call(call))
    return True


def _doubt_computed(findings: Findings, call: SourceCall, *, harmless: Container[str] = ()) -> None:
    unknown = [name for name in sorted(call.given - call.keywords.keys()) if name not in harmless]
    findings.doubts += [
        f"not certain: {name} of {_from_call(call)} is computed" for name in unknown
    ]


def _tokenized(source: Source) -> int | None:
    lengths = [call.keywords.get("max_length") for call in source.calls]
    return next((one for one in lengths if isinstance(one, int)), None)


def _put_input(findings: Findings, source: Source) -> None:
    library = findings.spec.get("model", {}).get("source")
    length, size = source.find(*_LENGTH), source.find(*_SIZE)
    if library in (None, "transformers"):
        if length is not None and isinstance(length.value, int):
            findings.put("input", {"sequence_length": length.value}, _from_option(length))
        elif (tokens := _tokenized(source)) is not None:
            findings.put("input", {"sequence_length": tokens}, f"max_length={tokens}")
    if size is not None and isinstance(size.value, int):
        findings.put("input", _square(size.value), _from_option(size))
    for call in source.calls:
        if call.last in _RESIZING and call.arguments:
            findings.put("input", _square(call.arguments[0]), _from_call(call))


def _square(size: Any) -> dict[str, Any] | None:
    sides = [size, size] if isinstance(size, int) else list(size or [])
    is_shape = len(sides) == 2 and all(isinstance(side, int) for side in sides)
    return {"shape": [3, *sides]} if is_shape else None


def _put_optimizer(findings: Findings, source: Source) -> None:
    for call in source.calls:
        top, _, rest = call.name.partition(".")
        library = {"torch": "", "bitsandbytes": "bitsandbytes.", "torchao": "torchao."}.get(top)
        if library is None or not rest.startswith("optim.") or not call.last[:1].isupper():
            continue
        kept = ("momentum", "fused", "foreach", "amsgrad", "nesterov")
        kwargs = {name: call.keywords[name] for name in kept if name in call.keywords}
        made: dict[str, Any] = {"name": f"{library}{call.last}"}
        findings.put("optimizer", made | ({"kwargs": kwargs} if kwargs else {}), _from_call(call))
    if "optimizer" not in findings.spec:
        findings.doubts.append("not found: optimizer; without it, it is SGD, the smallest")


def _put_precision(findings: Findings, source: Source) -> None:
    for call in source.calls:
        typed = [*call.arguments, call.keywords.get("torch_dtype"), call.keywords.get("dtype")]
        dtype = next((_HALF[one] for one in typed if isinstance(one, str) and one in _HALF), None)
        if call.last == "autocast":
            name = f"amp-{dtype or 'fp16'}"
        elif call.last in ("from_pretrained", "to") and dtype:
            name = dtype
        elif call.last in ("half", "bfloat16") and "." in call.name and not call.arguments:
            name = "fp16" if call.last == "half" else "bf16"
        else:
            continue
        findings.put("precision", name, _from_call(call))
    if "precision" not in findings.spec:
        findings.remarks.append("assumed: precision: fp32, since no 16-bit type was found")


def _put_adapter(findings: Findings, source: Source) -> None:
    lora, kept = source.called("LoraConfig"), source.called("BitsAndBytesConfig")
    if lora is not None:
        names = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout",
                 "target_modules": "target_modules"}  # fmt: skip
        given = {ours: lora.keywords[name] for name, ours in names.items() if name in lora.keywords}
        method = {"method": "dora"} if lora.keywords.get("use_dora") is True else {}
        known = {*names, *_SCALES, "use_dora"}
        others = {name: value for name, value in lora.keywords.items() if name not in known}
        more = {"kwargs": others} if others else {}
        findings.put("lora", method | given | more, _from_call(lora))
        _doubt_computed(findings, lora, harmless=_SCALES)
    if kept is not None and lora is not None:
        four = {"method": kept.keywords.get("bnb_4bit_quant_type", "fp4")}
        if kept.keywords.get("bnb_4bit_use_double_quant") is True:
            four["double"] = True
        made = four if kept.keywords.get("load_in_4bit") is True else {"method": "int8"}
        findings.put("quantization", made, _from_call(kept))


def _put_switches(findings: Findings, source: Source) -> None:
    for name, field in {
        "gradient_checkpointing_enable": "gradient_checkpointing",
        "set_grad_checkpointing": "gradient_checkpointing",
        "LigerKernelForCausalLM": "liger",
    }.items():
        if call := source.called(name):
            findings.put(field, True, _from_call(call))
    if any(call.name == "torch.compile" for call in source.calls):
        findings.put("compile", True, "torch.compile")
    clip = source.called("clip_grad_norm_")
    if clip is not None:
        norm = clip.arguments[1] if len(clip.arguments) > 1 else clip.keywords.get("max_norm")
        known = float(norm) if isinstance(norm, int | float) and norm > 0 else 1.0
        findings.put("clip_grad_norm", known, _from_call(clip))
    if source.assigned.get("torch.backends.cudnn.benchmark") is True:
        findings.put("cudnn_benchmark", True, "torch.backends.cudnn.benchmark")
    formats = [call.keywords.get("memory_format") for call in source.calls]
    if "torch.channels_last" in formats:
        findings.put("channels_last", True, "memory_format=torch.channels_last")
    assert findings.spec.keys() <= JobSpec.model_fields.keys()
