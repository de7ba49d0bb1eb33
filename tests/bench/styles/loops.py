"""What the jobs share: the list of them, batches, small models, the loop of every tutorial.

A loop takes ``start``, called when the model and the optimizer are made, and ``done``, called after
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Loop = Callable[[str, int, Callable[[], None], Callable[[], None]], None]

JOBS: dict[str, Loop] = {}

#: take what most traces do not show: they must be doubted, and are counted by themselves
HIDING: set[str] = set()


def job(loop: Loop) -> Loop:
    """Put a loop on the list."""
    JOBS[loop.__name__] = loop
    return loop


def hiding_job(loop: Loop) -> Loop:
    """Put a loop on the list that takes what most traces do not show."""
    HIDING.add(loop.__name__)
    return job(loop)


def images(device: str, num: int, batch: int, size: int, classes: int = 10) -> Iterator[Any]:
    """Yield batches of pictures with their classes."""
    for _ in range(num):
        x = torch.randn(batch, 3, size, size)
        y = torch.randint(0, classes, (batch,))
        yield x.to(device), y.to(device)


def tokens(device: str, num: int, batch: int, length: int, vocabulary: int) -> Iterator[Any]:
    """Yield batches of tokens, the last one longest."""
    for _ in range(num):
        yield torch.randint(0, vocabulary, (batch, length)).to(device)


def plain(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Any],
    start: Callable[[], None],
    done: Callable[[], None],
) -> None:
    """Train a classifier in the loop of every tutorial."""
    start()
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        done()


def mlp_model(device: str) -> nn.Module:
    """Make three layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    ).to(device)


def convolutions(width: int = 32) -> nn.Sequential:
    """Make a small network of convolutions with batch norm."""
    layers: list[nn.Module] = []
    for fed, given in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [
            nn.Conv2d(fed, given, 3, padding=1),
            nn.BatchNorm2d(given),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))
