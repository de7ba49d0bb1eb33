"""Jobs on sequences: language models in several precisions and styles, adapters, tagging."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from loops import job, tokens
from torch import nn
from torch.utils.checkpoint import checkpoint


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
