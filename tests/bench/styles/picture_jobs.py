"""Jobs on pictures: plain networks with one optimizer after the other, and what is larger."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from loops import convolutions, images, job, mlp_model, plain
from torch import nn


@job
def mlp(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Adam, zeroed at the start of an iteration."""
    model = mlp_model(device)
    plain(model, torch.optim.Adam(model.parameters()), images(device, num, 256, 32), start, done)


@job
def mlp_adagrad(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """An optimizer whose state is made with it."""
    model = mlp_model(device)
    plain(model, torch.optim.Adagrad(model.parameters()), images(device, num, 256, 32), start, done)


@job
def mlp_sgd(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """No state at all."""
    model = mlp_model(device)
    plain(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        images(device, num, 256, 32),
        start,
        done,
    )


@job
def mlp_rmsprop(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Three buffers for each parameter."""
    model = mlp_model(device)
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9, centered=True)
    plain(model, optimizer, images(device, num, 64, 32), start, done)


@job
def mlp_amsgrad(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Three buffers for each parameter, zeroed after the step, and gradients clipped."""
    model = mlp_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    start()
    for x, y in images(device, num, 64, 32):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done()


@job
def mlp_kept_gradients(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Gradients that are zeroed and never given back."""
    model = mlp_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start()
    for x, y in images(device, num, 64, 32):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        done()


@job
def cnn(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """SGD with momentum and decay."""
    model = convolutions().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    plain(model, optimizer, images(device, num, 16, 64), start, done)


@job
def resnet18(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """The tutorial's."""
    from torchvision.models import resnet18 as make

    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    plain(model, optimizer, images(device, num, 8, 96), start, done)


@job
def vit(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A vision transformer of torchvision."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(64, 8, 4, 4, 192, 768, dropout=0.1, num_classes=10).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    plain(model, optimizer, images(device, num, 8, 64), start, done)


class UNet(nn.Module):
    """Down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._two(3, 16), self._two(16, 32), self._two(32, 64)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, 16, 2, stride=2)]
        )
        self.back = nn.ModuleList([self._two(64, 32), self._two(32, 16)])
        self.last = nn.Conv2d(16, 1, 1)

    @staticmethod
    def _two(fed: int, given: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(fed, given, 3, padding=1),
            nn.GroupNorm(4, given),
            nn.SiLU(),
            nn.Conv2d(given, given, 3, padding=1),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a mask."""
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for up, back, skip in zip(self.up, self.back, reversed(kept[:-1]), strict=True):
            x = back(torch.cat([up(x), skip], dim=1))
        return self.last(x)


@job
def unet(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Segmentation with a loss on pictures."""
    model = UNet().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    start()
    for x, _ in images(device, num, 4, 64):
        target = torch.rand(4, 1, 64, 64).to(device)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), target)
        loss.backward()
        optimizer.step()
        done()
