"""A training script as people write them: arguments, a data loader with a worker, pinned memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--width", type=int, default=64)
arguments = parser.parse_args()

assert torch.cuda.is_available()
device = torch.device("cuda")
model = nn.Sequential(
    nn.Conv2d(3, arguments.width, 3),
    nn.BatchNorm2d(arguments.width),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(arguments.width, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images = TensorDataset(torch.randn(48, 3, 32, 32), torch.randint(0, 10, (48,)))
loader = DataLoader(images, batch_size=arguments.batch_size, num_workers=1, pin_memory=True)

if __name__ == "__main__":
    for _ in range(arguments.epochs):
        for inputs, labels in loader:
            inputs = inputs.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            print(loss.item())  # noqa: T201  as scripts do
        torch.cuda.empty_cache()
