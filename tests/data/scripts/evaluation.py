"""Evaluates with a larger batch: after each epoch, after some steps, or only before training."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

(when,) = sys.argv[1:]
device = "cuda"
model = nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())


def load(num: int, batch_size: int) -> DataLoader:
    """Load noise."""
    noise = TensorDataset(torch.randn(num, 3, 16, 16), torch.randint(0, 10, (num,)))
    return DataLoader(noise, batch_size)


def evaluate() -> None:
    """Count what is right."""
    model.eval()
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for inputs, labels in load(4096, 2048):
            right += (model(inputs.to(device)).argmax(1) == labels.to(device)).sum()
    print(right.item())  # noqa: T201  as scripts do
    model.train()


if when == "before":
    evaluate()
for _ in range(2):
    for number, (inputs, labels) in enumerate(load(48, 8)):
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if when == "steps" and number % 2:
            evaluate()
    if when == "epoch":
        evaluate()
