"""Jobs with more than one model, or with weights that are not trained."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from loops import convolutions, images, job, mlp_model, plain
from torch import nn


@job
def gan(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Two models and two optimizers."""
    generator = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 3 * 32 * 32), nn.Tanh()
    ).to(device)
    critic = nn.Sequential(nn.Linear(3 * 32 * 32, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(
        device
    )
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    start()
    for x, _ in images(device, num, 128, 32):
        noise = torch.randn(128, 64, device=device)
        fake = generator(noise)
        of_critic.zero_grad()
        real_score, fake_score = critic(x.flatten(1)), critic(fake.detach())
        critic_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        critic_loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        generator_loss = F.softplus(-critic(fake)).mean()
        generator_loss.backward()
        of_generator.step()
        done()


@job
def frozen(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A backbone that is not trained."""
    model = convolutions(64).to(device)
    for parameter in model[:-1].parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.Adam(model[-1].parameters())
    plain(model, optimizer, images(device, num, 8, 64), start, done)


@job
def feature_extractor(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """A large model that only looks, and a small one that learns from it."""
    body = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).to(device).eval()
    head = nn.Linear(1024, 10).to(device)
    optimizer = torch.optim.Adam(head.parameters())
    start()
    for _ in range(num):
        x, y = torch.randn(64, 1024).to(device), torch.randint(0, 10, (64,)).to(device)
        with torch.no_grad():
            seen = body(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(head(seen), y)
        loss.backward()
        optimizer.step()
        done()


@job
def ema(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A copy of the weights follows them."""
    model = mlp_model(device)
    copied = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for x, y in images(device, num, 64, 32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(copied.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        done()


@job
def siamese(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """One network reads two pictures."""
    model = convolutions(16).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for x, y in images(device, num, 8, 64):
        other = torch.flip(x, dims=[0])
        optimizer.zero_grad()
        distance = F.pairwise_distance(model(x), model(other))
        loss = F.mse_loss(distance, y.float())
        loss.backward()
        optimizer.step()
        done()


@job
def cached_batch(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """The same batch again and again, made before."""
    model = convolutions(16).to(device)
    optimizer = torch.optim.NAdam(model.parameters())
    x, y = torch.randn(32, 3, 64, 64).to(device), torch.randint(0, 10, (32,)).to(device)
    start()
    for _ in range(num):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        done()
