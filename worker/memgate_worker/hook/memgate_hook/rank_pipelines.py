"""A pipeline's stage without the stages before and after it: what it would agree on with them."""

from __future__ import annotations

from typing import Any

import torch

from .rank_post import carry_objects


def agree_with_oneself(stages: Any) -> None:
    """Change ``torch.distributed.pipelining.stage``, as far as it has what is changed.

    From torch 2.12 on, stages vote on whether shapes are known, and tell each other the shapes of
    gradients. Nobody is there, so the vote is this stage's own, and gradients are shaped like the
    outputs that they are of. Shapes of inputs come from the stage before it (``rank_objects``).
    """
    stage = getattr(stages, "PipelineStage", None)
    if hasattr(stage, "_warmup_forward_vote"):
        _vote_alone(stages, stage)
    if hasattr(stage, "_recv_meta"):
        _derive_gradients(stages, stage)


def _vote_alone(stages: Any, stage: Any) -> None:
    vote, hear = stage._warmup_forward_vote, stage._warmup_backward_result

    def vote_alone(self: Any, has_backward: bool, *args: Any, **kwargs: Any) -> Any:
        with carry_objects():  # votes are no sizes
            vote(self, has_backward, *args, **kwargs)
        is_dynamic = stages.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        own = torch.tensor([0 if is_dynamic else 1], dtype=torch.int32, device=self.device)
        self._memgate_vote = own
        return own

    def hear_oneself(self: Any, *args: Any, **kwargs: Any) -> Any:
        with carry_objects():
            hear(self, *args, **kwargs)
        return self._memgate_vote

    stage._warmup_forward_vote = vote_alone
    stage._warmup_backward_result = hear_oneself


def _derive_gradients(stages: Any, stage: Any) -> None:
    receive = stage._recv_meta

    def receive_or_derive(self: Any, source: int) -> Any:
        if source < self.stage_index:
            return receive(self, source)
        metas = stages._derive_grad_metas(self._stage_meta.outputs)
        return stages._StageBackwardMeta(backward_metas=metas)

    stage._recv_meta = receive_or_derive
