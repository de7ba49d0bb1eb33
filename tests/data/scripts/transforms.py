"""Pictures prepared by modules in this process; the batch stays on the host, too."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import v2

prepare = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomResizedCrop(32, antialias=True),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
)
pictures = FakeData(128, (3, 48, 48), 10, transform=prepare)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adagrad(model.parameters())

for _ in range(100):
    for images, labels in DataLoader(pictures, batch_size=16, pin_memory=True):
        on_device, wanted = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(on_device), wanted).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, new in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(new, 0.01)
