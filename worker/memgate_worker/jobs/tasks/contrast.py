"""Embeddings of texts: two texts for each sample, and those of a sample belong together.

As sentence-transformers trains them with its ``MultipleNegativesRankingLoss``: each column of texts
goes through the model by itself, the vectors of its tokens are averaged, and every first text is
compared with all second texts of the batch.
"""

from __future__ import annotations

import torch
from torch import nn

from memgate.jobspec import JobSpec
from memgate_worker.jobs.tasks.feed import Feed, refuse_input
from memgate_worker.jobs.tasks.task import Batch, Task

#: how much similarities, which are at most 1, are multiplied with
_SCALE = 20.0


def contrastive_task(spec: JobSpec, model: nn.Module) -> Task:
    """Return how embeddings are trained.

    Raises:
        InputError: if the spec does not say how long texts are, or says something else.
        UnsupportedJobError: if the model does not read text.
    """
    feed = Feed(spec, model)
    name = type(model).__name__
    if "input_ids" not in feed.takes:
        raise feed.refuse("texts, which it does not take")
    if spec.input.sequence_length is None or spec.input.shape or spec.input.tensors:
        rule = f"{name} is given two texts for each sample, and their length decides"
        raise refuse_input("sequence_length", spec.input.sequence_length, rule, "give it alone")
    return Task(batch={"first": _texts(feed), "second": _texts(feed)}, call=_embed, loss=_compare)


def _texts(feed: Feed) -> Batch:
    tokens = feed.tokens(feed.num_samples, feed.length)
    mask = torch.ones_like(tokens)
    mask[:, -1] = 0
    made = {"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens), "attention_mask": mask}
    return {name: one for name, one in made.items() if name in feed.takes}


def _embed(model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """Return the vectors of both columns."""
    return [_average(model, batch[one]) for one in ("first", "second")]


def _average(model: nn.Module, text: Batch) -> torch.Tensor:
    """Return for each text the average of the vectors of its tokens."""
    vectors = model(**text, return_dict=True)[0]
    mask = text.get("attention_mask", torch.ones_like(text["input_ids"]))
    counts = mask.unsqueeze(-1).to(vectors.dtype)
    # in fp32, whatever the type of the vectors, as the library adds up
    total = (vectors * counts).sum(dim=1, dtype=torch.float32)
    number = torch.clamp(counts.sum(dim=1, dtype=torch.float32), min=1e-9)
    return (total / number).to(vectors.dtype)


def _compare(outputs: list[torch.Tensor], batch: Batch) -> torch.Tensor:
    first, second = map(nn.functional.normalize, outputs)
    scores = torch.mm(first, second.transpose(0, 1)) * _SCALE
    places = torch.arange(len(scores), device=scores.device)
    error: torch.Tensor = -(scores[places, places] - torch.logsumexp(scores, dim=1)).mean()
    return error
