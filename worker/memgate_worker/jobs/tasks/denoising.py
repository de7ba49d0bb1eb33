"""How models of diffusers are trained: the noise in a latent, or an image made again.

Latents and what describes them are there from the start, as if an autoencoder and text encoders had
made them before: those are not on the GPU. Noise is added on the GPU in each step; the loss is the
squared error of what the model says the noise is, in fp32, as in the scripts of diffusers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import JobSpec
from memgate_worker.jobs.steering import Steering
from memgate_worker.jobs.tasks.conditions import make_conditions
from memgate_worker.jobs.tasks.inputs import make_named
from memgate_worker.jobs.tasks.latents import LatentFeed
from memgate_worker.jobs.tasks.task import Batch, Task, each_tensor

#: steers another model, of which its configuration does not say enough
_STEERING = ("ControlNet", "Adapter")


def diffusion_task(spec: JobSpec, model: nn.Module) -> Task:
    """Return how a model of diffusers is trained.

    Raises:
        InputError: if the spec's input is not what the model takes.
        UnsupportedJobError: if it takes something that we cannot make.
    """
    if isinstance(model, Steering):
        given = {"lora": spec.lora, "quantization": spec.quantization, "ema": spec.ema}
        if unknown := [name for name, value in given.items() if value]:
            raise UnsupportedJobError(
                f"{' and '.join(unknown)}: memgate does not know which part of it concerns a"
                " ControlNet, and which the model that it steers; ask about the command that trains"
                " it (memgate run --gpu GPU -- COMMAND)"
            )
        return _steer(LatentFeed(spec, model.controlnet))
    feed = LatentFeed(spec, model)
    if any(one in feed.name for one in _STEERING):
        raise feed.refuse(
            "the frozen model that it steers, through which its gradients come, and whose depth its"
            " configuration does not say"
        )
    if feed.input.tensors:
        return Task(batch=make_named(feed), call=_predict, loss=_to_zero)
    if not feed.main:
        raise feed.refuse(f"it takes {', '.join(sorted(feed.takes))}")
    if feed.main == "input_ids":
        return _fill_in(feed)
    if feed.is_autoencoder:
        return _make_again(feed)
    batch = {feed.main: _latents(feed), **make_conditions(feed)}
    return Task(batch=batch, call=partial(_denoise, feed.main), loss=_error)


def _steer(feed: LatentFeed) -> Task:
    """Return the training of a ControlNet, by the error of the U-Net that it steers."""
    _, height, width = feed.shape
    scale = 2 ** (len(feed.setting("conditioning_embedding_out_channels")) - 1)
    sides = (feed.setting("conditioning_channels"), height * scale, width * scale)
    picture = torch.zeros(feed.num_samples, *sides)
    batch = {feed.main: _latents(feed), "controlnet_cond": picture}
    conditions = make_conditions(feed, given=batch)
    return Task(batch=batch | conditions, call=partial(_denoise, feed.main), loss=_error)


def _latents(feed: LatentFeed) -> Any:
    dtype = getattr(torch, feed.input.dtype)
    if feed.main == "x":  # one by one: their sizes may differ
        shape = (feed.shape[0], 1, *feed.shape[1:])
        return [torch.zeros(shape, dtype=dtype) for _ in range(feed.num_samples)]
    return torch.zeros((feed.num_samples, *feed.laid_out), dtype=dtype)


def _predict(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return what the model makes: the first tensor of what it returns."""
    made = model(**batch)
    return next(each_tensor(made if isinstance(made, dict) else list(made)))


def _denoise(main: str, model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """Add noise, and have it found; return what was found and what was there."""
    latents = batch[main]
    if isinstance(latents, list):
        noise = [torch.randn_like(one) for one in latents]
        noisy = [_mix(one, other) for one, other in zip(latents, noise, strict=True)]
        made = list(each_tensor(model(**batch | {main: noisy}, return_dict=False)))
        return torch.stack(made), torch.stack(noise) - torch.stack(latents)
    noise = torch.randn_like(latents)
    made = _predict(model, batch | {main: _mix(latents, noise)})
    # U-Nets learn the noise, others the way from it
    return made, noise if main == "sample" else noise - latents


def _mix(latents: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return 0.5 * latents + 0.5 * noise


def _error(outputs: tuple[torch.Tensor, torch.Tensor], batch: Batch) -> torch.Tensor:
    made, wanted = outputs
    if made.shape != wanted.shape:  # it learns a variance, too, or is told more than it makes
        made, wanted = _matching(made, wanted)
    return nn.functional.mse_loss(made.float(), wanted.float())


def _matching(made: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    doubled = (wanted.shape[0], 2 * wanted.shape[1], *wanted.shape[2:])
    if made.shape == doubled:
        return made.chunk(2, dim=1)[0], wanted
    return made, torch.zeros_like(made)


def _to_zero(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(outputs.float(), torch.zeros_like(outputs).float())


def _make_again(feed: LatentFeed) -> Task:
    """Return the training of an autoencoder by what its images look like afterwards."""
    beside = {"sample_posterior": True} if "sample_posterior" in feed.takes else {}

    def loss(outputs: Any, batch: Batch) -> torch.Tensor:
        again, *others = each_tensor(outputs)
        error = nn.functional.mse_loss(again.float(), batch["sample"].float())
        return sum((one.mean() for one in others if one.requires_grad), start=error)

    return Task(
        batch={"sample": _latents(feed)},
        call=lambda model, batch: model(**batch, **beside),
        loss=loss,
    )


def _fill_in(feed: LatentFeed) -> Task:
    """Return the training of a model that fills in the missing tokens of an image."""
    side = feed.setting("sample_size")
    shape = feed.input.sample_shape or (side, side)
    tokens = torch.zeros((feed.num_samples, *shape), dtype=torch.int64)

    def loss(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, batch["input_ids"])

    return Task(
        batch={"input_ids": tokens, **make_conditions(feed)},
        call=lambda model, batch: model(**batch),
        loss=loss,
    )
