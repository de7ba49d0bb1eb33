"""What a training script says -> a first job spec, with where each field is from."""

from __future__ import annotations

from typing import Any

from memgate.first_spec.by_hand import put_accumulation, put_heads
from memgate.first_spec.finding import Findings, from_call, from_option
from memgate.first_spec.source import Source, SourceCall, read_source
from memgate.first_spec.trainers import LENGTH, PARSERS, doubt_computed, find_tokenized, put_trainer
from memgate.first_spec.unread import USUAL_HEAD, find_unread
from memgate.jobspec import JobSpec

_BATCH = (
    *("batch_size", "per_device_train_batch_size", "train_batch_size", "micro_batch_size"),
    *("batch", "bs", "batchsize"),
)
_SIZE = ("img_size", "image_size", "crop_size", "input_size", "resolution", "imgsz")
_STEPS = ("gradient_accumulation_steps", "accumulation_steps", "grad_accum_steps", "grad_accum")
_MODEL = ("model_name_or_path", "model_name", "model", "arch", "model_id", "base_model")
_RESIZING = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "Resize")

_HALF = {"torch.float16": "fp16", "torch.half": "fp16", "torch.bfloat16": "bf16"}

#: arguments of an adapter that change no memory
_SCALES = ("lora_alpha", "task_type", "bias", "inference_mode")

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
    if parser := source.called(*PARSERS):
        findings.doubts.append(
            f"not certain: {from_call(parser)} reads settings from a command line or a config;"
            " if it is a config: memgate init CONFIG"
        )
    find_unread(findings, source)
    if put_trainer(findings, source):
        _put_adapter(findings, source)
        return findings
    _put_input(findings, source)
    _put_option(findings, source, "batch_size", _BATCH)
    loader = source.called("DataLoader")
    if loader and isinstance(size := loader.keywords.get("batch_size"), int):
        findings.put("batch_size", size, from_call(loader))
    accelerator = source.called("Accelerator")
    if accelerator and isinstance(
        steps := accelerator.keywords.get("gradient_accumulation_steps"), int
    ):
        findings.put("gradient_accumulation_steps", steps, from_call(accelerator))
    _put_option(findings, source, "gradient_accumulation_steps", _STEPS, least=2)
    put_accumulation(findings, source.accumulation)
    _put_optimizer(findings, source)
    _put_precision(findings, source)
    _put_adapter(findings, source)
    _put_switches(findings, source)
    return findings


def _put_option(
    findings: Findings, source: Source, field: str, names: tuple[str, ...], *, least: int = 1
) -> None:
    option = source.find(*names)
    if option is not None and isinstance(option.value, int) and option.value >= least:
        findings.put(field, option.value, from_option(option))


def _put_model(findings: Findings, source: Source) -> None:
    made = [(call, model) for call in source.calls if (model := _model_of(call))]
    for call, model in made:
        findings.put("model", model, from_call(call))
    others = {str(model.get("name", model.get("class"))) for _, model in made}
    if len(others) > 1:
        findings.doubts.append(
            f"not certain: model: the script makes several: {', '.join(sorted(others))}"
        )
    option = source.find(*_MODEL)
    if option is not None and isinstance(option.value, str):
        library = _guess_library(source)
        heads = {head for call in source.calls if (head := _head_of(call))}
        is_one = library == "transformers" and len(heads) == 1
        model = {"source": library, "name": option.value} | (
            {"class": heads.pop()} if is_one else {}
        )
        findings.put("model", model, from_option(option))


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
        head = _head_of(call)
        made = {"source": "transformers", "name": named} | ({"class": head} if head else {})
        return made if isinstance(named, str) else None
    if last.endswith(_HEADS) and call.name.startswith("transformers."):
        return {"source": "transformers", "class": last}
    return None


def _head_of(call: SourceCall) -> str | None:
    """Return the class of transformers that is loaded, if its name says that it has a head."""
    library, _, rest = call.name.partition(".")
    owner, _, last = rest.partition(".")
    is_head = "For" in owner and not owner.endswith(USUAL_HEAD)
    return owner if library == "transformers" and last == "from_pretrained" and is_head else None


def _classes(call: SourceCall) -> dict[str, Any]:
    number = call.keywords.get("num_classes")
    return {"kwargs": {"num_classes": number}} if isinstance(number, int) else {}


def _guess_library(source: Source) -> str:
    """Return whose the name of an option is: that of the library of which something is called."""
    called = {call.name.partition(".")[0] for call in source.calls}
    return next((one for one in ("timm", "torchvision") if one in called), "transformers")


def _put_input(findings: Findings, source: Source) -> None:
    library = findings.spec.get("model", {}).get("source")
    length, size = source.find(*LENGTH), source.find(*_SIZE)
    if library in (None, "transformers"):
        if length is not None and isinstance(length.value, int):
            findings.put("input", {"sequence_length": length.value}, from_option(length))
        elif (tokens := find_tokenized(source)) is not None:
            findings.put("input", {"sequence_length": tokens}, f"max_length={tokens}")
    if size is not None and isinstance(size.value, int):
        findings.put("input", _square(size.value), from_option(size))
    for call in source.calls:
        if call.last in _RESIZING and call.arguments:
            findings.put("input", _square(call.arguments[0]), from_call(call))


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
        findings.put("optimizer", made | ({"kwargs": kwargs} if kwargs else {}), from_call(call))
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
        findings.put("precision", name, from_call(call))
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
        findings.put("lora", method | given | more, from_call(lora))
        doubt_computed(findings, lora, harmless=_SCALES)
    if kept is not None and lora is not None:
        four = {"method": kept.keywords.get("bnb_4bit_quant_type", "fp4")}
        if kept.keywords.get("bnb_4bit_use_double_quant") is True:
            four["double"] = True
        made = four if kept.keywords.get("load_in_4bit") is True else {"method": "int8"}
        findings.put("quantization", made, from_call(kept))


def _put_switches(findings: Findings, source: Source) -> None:
    for name, field in {
        "gradient_checkpointing_enable": "gradient_checkpointing",
        "set_grad_checkpointing": "gradient_checkpointing",
        "LigerKernelForCausalLM": "liger",
    }.items():
        if call := source.called(name):
            findings.put(field, True, from_call(call))
    if any(call.name == "torch.compile" for call in source.calls):
        findings.put("compile", True, "torch.compile")
    clip = source.called("clip_grad_norm_")
    if clip is not None:
        norm = clip.arguments[1] if len(clip.arguments) > 1 else clip.keywords.get("max_norm")
        known = float(norm) if isinstance(norm, int | float) and norm > 0 else 1.0
        findings.put("clip_grad_norm", known, from_call(clip))
    if source.assigned.get("torch.backends.cudnn.benchmark") is True:
        findings.put("cudnn_benchmark", True, "torch.backends.cudnn.benchmark")
    formats = [call.keywords.get("memory_format") for call in source.calls]
    if "torch.channels_last" in formats:
        findings.put("channels_last", True, "memory_format=torch.channels_last")
    assert findings.spec.keys() <= JobSpec.model_fields.keys()
