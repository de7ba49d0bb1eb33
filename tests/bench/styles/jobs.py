"""Small training jobs as people write them: each is a loop over batches, on a CPU or on CUDA.

Run by the Python of a runtime: ``python jobs.py NAME --device cuda`` trains, which is what the
phantom sees; ``recording`` calls the same loops on the CPU, under torch.profiler. A loop takes
``start``, called when the model and the optimizer are made, and ``done``, called after each step.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Loop = Callable[[str, int, Callable[[], None], Callable[[], None]], None]

JOBS: dict[str, Loop] = {}


def job(loop: Loop) -> Loop:
    """Put a loop on the list."""
    JOBS[loop.__name__] = loop
    return loop


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


class Packed(nn.Module):
    """Attention with one projection for q, k and v, as nanoGPT has it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(c, dim=2)
        )
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Separate(Packed):
    """Attention with three projections."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        b, t, c = x.shape
        q, k, v = (
            make(x).view(b, t, self.heads, c // self.heads).transpose(1, 2) for make in self.qkv
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, attention: nn.Module, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend and think."""
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, attention: type[Packed], *, dropout: float, layers: int = 4) -> None:
        super().__init__()
        width = 256
        self.tokens, self.places = nn.Embedding(4096, width), nn.Embedding(512, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, attention(width, 8, dropout), dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4096, bias=False)
        self.head.weight = self.tokens.weight
        self.saves = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of saying the next token."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.tokens(ids) + self.places(places))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def language(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[torch.Tensor],
    start: Callable[[], None],
    done: Callable[[], None],
) -> None:
    """Train a language model."""
    start()
    for ids in batches:
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done()


@job
def gpt_packed(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """As nanoGPT: packed, with dropout."""
    model = Gpt(Packed, dropout=0.1).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    language(model, optimizer, tokens(device, num, 4, 256, 4096), start, done)


@job
def gpt_separate(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Three projections, no dropout."""
    model = Gpt(Separate, dropout=0.0).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    language(model, optimizer, tokens(device, num, 4, 256, 4096), start, done)


@job
def gpt_checkpointed(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Activations are worked out again."""
    model = Gpt(Separate, dropout=0.0).to(device)
    model.saves = True
    optimizer = torch.optim.AdamW(model.parameters())
    language(model, optimizer, tokens(device, num, 4, 256, 4096), start, done)


@job
def gpt_lengths(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Batches of different lengths."""
    model = Gpt(Separate, dropout=0.0, layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = (192, 256, 224)
    batches = (torch.randint(0, 4096, (4, lengths[number % 3])).to(device) for number in range(num))
    language(model, optimizer, batches, start, done)


@job
def gpt_amp(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Mixed precision."""
    model = Gpt(Separate, dropout=0.0, layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    start()
    for ids in tokens(device, num, 4, 128, 4096):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids)
        loss.backward()
        optimizer.step()
        done()


@job
def gpt_accumulation(
    device: str, num: int, start: Callable[[], None], done: Callable[[], None]
) -> None:
    """Two batches for a step."""
    model = Gpt(Separate, dropout=0.0, layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    start()
    for number, ids in enumerate(tokens(device, 2 * num, 2, 128, 4096)):
        (model(ids) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            done()


@job
def t5(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """An encoder and a decoder of transformers."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=4096,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(device).train()
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for ids in tokens(device, num, 8, 128, 4096):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        done()


@job
def bert(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """A classifier of sentences."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
    )
    model = BertForSequenceClassification(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    start()
    for ids in tokens(device, num, 8, 128, 4096):
        labels = torch.randint(0, 2, (8,)).to(device)
        mask = torch.ones_like(ids)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done()


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


class Tagger(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Tag words."""
        return self.head(self.lstm(self.words(ids))[0])


@job
def lstm(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """What the phantom refuses, since cuDNN's memory is not known."""
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    start()
    for ids in tokens(device, num, 16, 32, 2000):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten() % 20)
        loss.backward()
        optimizer.step()
        done()


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


class Lora(nn.Module):
    """A linear layer that is not trained, with an adapter that is."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the adapter says."""
        return self.base(x) + self.b(self.a(x))


@job
def lora(device: str, num: int, start: Callable[[], None], done: Callable[[], None]) -> None:
    """Adapters in a language model."""
    model = Gpt(Separate, dropout=0.0, layers=3).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = nn.ModuleList(Lora(layer) for layer in block.attention.qkv)
    model.to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    language(model, optimizer, tokens(device, num, 2, 128, 4096), start, done)


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


def main() -> None:
    """Train one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(JOBS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    torch.manual_seed(0)
    JOBS[asked.name](asked.device, asked.steps, lambda: None, lambda: None)


if __name__ == "__main__":
    main()
