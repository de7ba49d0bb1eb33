"""A Hugging Face Trainer: mixed precision, accumulation, a model from a config."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    """Random tokens."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 1000, (64,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=1000)),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=100,
        bf16=True,
        report_to=[],
    ),
    train_dataset=Tokens(),
)
trainer.train()
raise AssertionError("memgate stops a script as soon as it has seen enough")
