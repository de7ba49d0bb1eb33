"""What scripts do by hand where a spec has a field: new heads, steps in some turns of a loop."""

from __future__ import annotations

from typing import Any

from memgate.first_spec.finding import Findings
from memgate.first_spec.source import Accumulation, Replacement, Source

#: what classifies, as torchvision and timm call it
_HEADS = frozenset(
    {"fc", "head", "classifier", "heads", "heads.head", "head.fc", "roi_heads.box_predictor"}
)

#: that come with a head, and belong to it
_BESIDE_HEADS = frozenset({"AuxLogits.fc", "aux1.fc2", "aux2.fc2", "roi_heads.mask_predictor"})

#: layers by which a head is replaced, whose last argument is the number of classes
_LAYERS = frozenset({"Linear", "Conv2d", "FastRCNNPredictor"})

_BUILDERS = ("torchvision", "timm")


def put_accumulation(findings: Findings, found: Accumulation | None) -> None:
    """Set how many batches a step has, of a loop that counts its turns."""
    if found is None or "gradient_accumulation_steps" in findings.spec:
        return
    if found.every is None:
        findings.doubts.append(
            f"not certain: gradient_accumulation_steps: line {found.line} makes a step in some"
            " turns only, and how many is computed; write the number"
        )
    elif found.every > 1:
        where = f"a step in every {found.every} turns, line {found.line}"
        findings.put("gradient_accumulation_steps", found.every, where)


def put_heads(findings: Findings, source: Source) -> None:
    """Set the number of classes of a model whose head is replaced; doubt what else is."""
    model = findings.spec.get("model")
    if model is None:
        return
    for one in source.replacements:
        if one.part in _HEADS:
            _put_classes(findings, model, _num_classes(one), one.made.line, f"its {one.part}")
        else:
            is_layer = one.made.name.startswith("torch.nn.") and one.part not in _BESIDE_HEADS
            findings.doubts += [_say_replaced(one.made.line, f"its {one.part}")] * is_layer
    reset = source.called("reset_classifier")
    if reset is not None:
        number = reset.arguments[0] if reset.arguments else reset.keywords.get("num_classes")
        _put_classes(findings, model, number, reset.line, "its classifier")


def _num_classes(one: Replacement) -> Any:
    """Return the outputs of a new head; None if they are computed, or it is more than a layer."""
    if one.made.last not in _LAYERS:
        return None
    named = ("out_features", "out_channels", "num_classes")
    given = [one.made.keywords[name] for name in named if name in one.made.keywords]
    return given[0] if given else next(iter(one.made.arguments[1:2]), None)


def _put_classes(
    findings: Findings, model: dict[str, Any], number: Any, line: int, part: str
) -> None:
    if not isinstance(number, int) or model["source"] not in _BUILDERS:
        findings.doubts.append(_say_replaced(line, part))
        return
    kwargs = model.get("kwargs", {})
    if "num_classes" not in kwargs:
        findings.spec["model"] = model | {"kwargs": kwargs | {"num_classes": number}}
        findings.notes["model"] += f"; num_classes from line {line}"


def _say_replaced(line: int, part: str) -> str:
    return (
        f"not certain: model: line {line} replaces {part}, and the model of a spec is as its"
        " library makes it; if the new part is much larger, ask about the script: memgate run"
    )
