"""A first spec of a script that replaces heads, or accumulates gradients by hand."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.first_spec import Findings, read_script

RESNET = ("import torch", "from torch import nn", "import torchvision", "import timm")
MADE = "model = torchvision.models.resnet50()"


def _read(*lines: str) -> Findings:
    return read_script("\n".join([*RESNET, *lines]))


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ((MADE, "model.fc = nn.Linear(model.fc.in_features, 10)"), 10),
        (("N = 7", MADE, "model.fc = nn.Linear(2048, out_features=N)"), 7),
        (("net = torchvision.models.vgg16()", "net.classifier[6] = nn.Linear(4096, 3)"), 3),
        (("net = torchvision.models.vit_b_16()", "net.heads.head = nn.Linear(768, 5)"), 5),
        (
            (
                "from torchvision.models.detection.faster_rcnn import FastRCNNPredictor",
                "m = torchvision.models.detection.fasterrcnn_resnet50_fpn()",
                "m.roi_heads.box_predictor = FastRCNNPredictor(inputs, 2)",
            ),
            2,
        ),
        (
            (
                "class Module:",
                "    def __init__(self):",
                "        self.model = timm.create_model('resnet18')",
                "        self.model.fc = nn.Linear(512, 4)",
                "        self.loss = nn.CrossEntropyLoss()",
            ),
            4,
        ),
        (("model = timm.create_model('resnet18')", "model.reset_classifier(6)"), 6),
        (
            ("model = torchvision.models.resnet50(num_classes=9)", "model.fc = nn.Linear(2048, 3)"),
            9,
        ),
    ],
)
def test_a_new_head_is_a_number_of_classes(lines: tuple[str, ...], want: int) -> None:
    """Whatever the library calls it."""
    findings = _read(*lines)

    assert findings.spec["model"]["kwargs"] == {"num_classes": want}
    assert not any("replaces" in one for one in findings.doubts)


@pytest.mark.parametrize(
    "lines",
    [
        (MADE, "model.fc = nn.Linear(2048, len(names))"),
        (MADE, "model.fc = nn.Sequential(nn.Linear(2048, 512), nn.Linear(512, 2))"),
        (MADE, "model.conv1 = nn.Conv2d(1, 64, 7)"),
        ("from transformers import AutoModel", "m = AutoModel.from_pretrained('bert-base-uncased')",
         "m.classifier = nn.Linear(768, 4)"),
    ],
)  # fmt: skip
def test_another_new_part_is_a_doubt(lines: tuple[str, ...]) -> None:
    """Its line is named."""
    findings = _read(*lines)

    assert any(f"line {len(RESNET) + len(lines)} replaces its" in one for one in findings.doubts)


def test_a_new_part_of_a_model_that_is_not_known_says_nothing() -> None:
    """There is no model that it could be a part of."""
    assert not any("replaces" in one for one in _read("model.fc = nn.Linear(3, 4)").doubts)


LOOP = ("for i, batch in enumerate(loader):", "    loss.backward()")


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (("K = 4", *LOOP, "    if (i + 1) % K == 0:", "        optimizer.step()"), 4),
        ((*LOOP, "    if i % 8 == 7 or i == last:", "        scaler.step(opt)"), 8),
        ((*LOOP, "    if not i % 2:", "        self.optim_g.step()"), 2),
        ((*LOOP, "    if i % 1 == 0:", "        optimizer.step()"), None),
        ((*LOOP, "    if i % 100 == 0:", "        scheduler.step()"), None),
        ((*LOOP, "    if i % 100 == 0:", "        print(loss)", "    optimizer.step()"), None),
        (("accelerator = Accelerator(gradient_accumulation_steps=6)",), 6),
    ],
)
def test_steps_in_some_turns_are_accumulation(lines: tuple[str, ...], want: Any) -> None:
    """The step of an optimizer, and not what else is done now and then."""
    findings = _read(*lines)

    assert findings.spec.get("gradient_accumulation_steps") == want


def test_steps_in_a_computed_number_of_turns_are_a_doubt() -> None:
    """The field and the line are named."""
    findings = _read(*LOOP, "    if i % (64 // size) == 0:", "        optimizer.step()")

    assert any("gradient_accumulation_steps: line 7 makes" in one for one in findings.doubts)
