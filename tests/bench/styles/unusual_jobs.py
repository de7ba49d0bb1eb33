"""Jobs that do something that others do not: other optimizers, data on the device, own loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from loops import hiding_job, job, mlp_model, plain
from torch import nn


def vectors(device: str, num: int, batch: int, width: int = 3 * 32 * 32) -> Iterator[Any]:
    """Yield batches of vectors with their classes."""
    for _ in range(num):
        x, y = torch.randn(batch, width), torch.randint(0, 10, (batch,))
        yield x.to(device), y.to(device)


@job
def mlp_long_batch(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """So many rows that CUDA sums up the gradients of biases in parts; losses are summed up."""
    model = mlp_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: Any = 0
    start()
    for x, y in vectors(device, num, 2048):
        loss = F.cross_entropy(model(x), y)
        total = total + loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()


@job
def mlp_rprop(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Masks for one parameter after the other, beside a list."""
    model = mlp_model(device)
    plain(model, torch.optim.Rprop(model.parameters()), vectors(device, num, 64), start, done)


@job
def mlp_adamax(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A maximum that is no third buffer."""
    model = mlp_model(device)
    plain(model, torch.optim.Adamax(model.parameters()), vectors(device, num, 64), start, done)


@job
def mlp_adam_decay(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Weights decay by way of the gradients, which takes another list."""
    model = mlp_model(device)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.01)
    plain(model, optimizer, vectors(device, num, 64), start, done)


@job
def mlp_two_groups(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Two groups of parameters, each with lists of its own."""
    encoder = nn.Sequential(nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device)
    decoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 3072)).to(device)
    optimizer = torch.optim.NAdam(
        [
            {"params": encoder.parameters(), "lr": 1e-3},
            {"params": decoder.parameters(), "lr": 1e-4},
        ]
    )
    start()
    for x, _ in vectors(device, num, 128):
        optimizer.zero_grad()
        loss = F.mse_loss(decoder(encoder(x)), x)
        loss.backward()
        optimizer.step()
        done()


@hiding_job
def masters(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Weights in low precision, and copies of them that are stepped."""
    model = mlp_model(device).bfloat16()
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies)
    start()
    for x, y in vectors(device, num, 64):
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for mine, weight in zip(copies, model.parameters(), strict=True):
            assert weight.grad is not None
            mine.grad, weight.grad = weight.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mine, weight in zip(copies, model.parameters(), strict=True):
                weight.copy_(mine)
        done()


@hiding_job
def target_network(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """A copy that is only read, and experience that lies on the device."""
    model = mlp_model(device)
    target = copy.deepcopy(model)
    seen = torch.randn(5000, 3 * 32 * 32).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    start()
    for _ in range(num):
        at = torch.randint(0, 4999, (64,))
        now, then = seen[at.to(device)], seen[(at + 1).to(device)]
        with torch.no_grad():
            wanted = target(then).max(1).values
        loss = F.smooth_l1_loss(model(now).max(1).values, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()


@job
def teacher(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A copy of the model that is read without gradients, and never written to."""
    model = mlp_model(device)
    other = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for x, _ in vectors(device, num, 64):
        with torch.no_grad():
            wanted = other(x)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        done()


@hiding_job
def data_on_device(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Gigabytes of data that lie on the device before the first step."""
    data = torch.empty(1_000_000, 1000, device=device)
    model = nn.Linear(1000, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for _ in range(num):
        at, y = torch.randint(0, 1_000_000, (256,)), torch.randint(0, 10, (256,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[at.to(device)]), y.to(device))
        loss.backward()
        optimizer.step()
        done()


@job
def mixed_batches(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Batches that are mixed with themselves in another order."""
    model = mlp_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    start()
    for x, y in vectors(device, num, 256):
        order = torch.randperm(256, device=device)
        x = 0.3 * x + 0.7 * x[order]
        said = model(x)
        loss = 0.3 * F.cross_entropy(said, y) + 0.7 * F.cross_entropy(said, y[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()


@hiding_job
def stepped_by_hooks(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Each parameter has an optimizer of its own, called as soon as its gradient is there."""
    model = mlp_model(device)
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    start()
    for x, y in vectors(device, num, 64):
        F.cross_entropy(model(x), y).backward()
        done()


@job
def attention_weights(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Attention that returns its weights, and so is not fused."""
    attention = nn.MultiheadAttention(256, 8, dropout=0.1, batch_first=True).to(device)
    head = nn.Linear(256, 1000).to(device)
    optimizer = torch.optim.Adam([*attention.parameters(), *head.parameters()])
    start()
    for _ in range(num):
        x, y = torch.randn(8, 256, 256).to(device), torch.randint(0, 1000, (2048,)).to(device)
        seen, weights = attention(x, x, x)
        loss = F.cross_entropy(head(seen).flatten(0, 1), y) + weights.var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()


@job
def padded_encoder(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """PyTorch's own encoder, with a mask of what is padding."""
    words = nn.Embedding(4096, 256).to(device)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2).to(device)
    head = nn.Linear(256, 4).to(device)
    parameters = [*words.parameters(), *encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    start()
    for _ in range(num):
        ids, y = torch.randint(0, 4096, (16, 128)).to(device), torch.randint(0, 4, (16,)).to(device)
        mask = torch.zeros(16, 128, dtype=torch.bool)
        mask[:, 100:] = True
        seen = encoder(words(ids), src_key_padding_mask=mask.to(device))
        loss = F.cross_entropy(head(seen.mean(1)), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        done()
