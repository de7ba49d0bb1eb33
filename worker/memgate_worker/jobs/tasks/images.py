"""Models of torchvision and timm: classification, segmentation, detection, video, optical flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memgate.jobspec import JobSpec, ModelSource
from memgate_worker.jobs.tasks.task import Batch, Task, add_losses, each_tensor

#: things to be found in an image
_NUM_OBJECTS = 4

#: with how much of a loss auxiliary classifiers count, as in torchvision's references
_AUXILIARY = 0.5


def image_task(spec: JobSpec, model: nn.Module) -> Task:
    """Return how a model of torchvision or timm is trained."""
    make: Callable[[JobSpec, nn.Module], Task] = _classify
    if spec.model.source is ModelSource.TORCHVISION:
        package = type(model).__module__.split(".")[2]
        make = _MAKERS.get(package, _classify)
    return make(spec, model)


def _samples(spec: JobSpec) -> torch.Tensor:
    shape = spec.input.sample_shape
    assert shape is not None
    dtype = getattr(torch, spec.input.dtype)
    return torch.zeros((spec.batch_size, *shape), dtype=dtype)


def _call(model: nn.Module, batch: Batch) -> Any:
    return model(batch["inputs"])


def _classify(spec: JobSpec, model: nn.Module) -> Task:
    labels = torch.zeros(spec.batch_size, dtype=torch.int64)
    return Task(batch={"inputs": _samples(spec), "labels": labels}, call=_call, loss=_of_classes)


def _of_classes(outputs: Any, batch: Batch) -> torch.Tensor:
    """Return the loss of a classifier; of a model without one, that of its features."""
    made = list(each_tensor(outputs))
    if all(one.dim() == 2 for one in made):
        return _entropy(outputs, batch)
    return add_losses([nn.functional.mse_loss(one, torch.zeros_like(one)) for one in made])


def _entropy(outputs: Any, batch: Batch) -> torch.Tensor:
    """Return the loss of a classifier, with that of its auxiliary ones if there are any."""
    labels = batch["labels"]
    if isinstance(outputs, torch.Tensor):
        return nn.functional.cross_entropy(outputs, labels)
    parts = list(outputs.values()) if isinstance(outputs, dict) else list(outputs)
    main, *others = (nn.functional.cross_entropy(one, labels) for one in parts if one is not None)
    for other in others:
        main = main + _AUXILIARY * other
    return main


def _segment(spec: JobSpec, model: nn.Module) -> Task:
    samples = _samples(spec)
    labels = torch.zeros(spec.batch_size, *samples.shape[-2:], dtype=torch.int64)
    return Task(batch={"inputs": samples, "labels": labels}, call=_call, loss=_entropy)


def _detect(spec: JobSpec, model: nn.Module) -> Task:
    images = list(_samples(spec))
    height, width = images[0].shape[-2:]
    target = {
        "boxes": torch.tensor([[0.0, 0.0, width / 2, height / 2]]).repeat(_NUM_OBJECTS, 1),
        "labels": torch.ones(_NUM_OBJECTS, dtype=torch.int64),
    }
    if hasattr(model, "roi_heads") and model.roi_heads.has_mask():
        target["masks"] = torch.zeros(_NUM_OBJECTS, height, width, dtype=torch.uint8)
    if hasattr(model, "roi_heads") and model.roi_heads.has_keypoint():
        keypoints = model.roi_heads.keypoint_predictor.kps_score_lowres.out_channels
        target["keypoints"] = torch.ones(_NUM_OBJECTS, keypoints, 3)
    targets = [dict(target) for _ in images]
    return Task(
        batch={"images": images, "targets": targets},
        call=lambda model, batch: model(batch["images"], batch["targets"]),
        loss=lambda outputs, batch: add_losses(outputs),
    )


def _flow(spec: JobSpec, model: nn.Module) -> Task:
    """Return the training of RAFT: the flow between two images, refined several times."""
    first, second = _samples(spec), _samples(spec)
    flow = torch.zeros(spec.batch_size, 2, *first.shape[-2:])

    def loss(outputs: list[torch.Tensor], batch: Batch) -> torch.Tensor:
        errors = [(one - batch["flow"]).abs().mean() for one in outputs]
        weighted = [0.8 ** (len(errors) - 1 - i) * error for i, error in enumerate(errors)]
        return sum(weighted)

    return Task(
        batch={"first": first, "second": second, "flow": flow},
        call=lambda model, batch: model(batch["first"], batch["second"]),
        loss=loss,
    )


_MAKERS: dict[str, Callable[[JobSpec, nn.Module], Task]] = {
    "segmentation": _segment,
    "detection": _detect,
    "optical_flow": _flow,
}
