"""JobSpec, model -> the loop of one rank of a pipeline, by ``torch.distributed.pipelining``.

Each rank has a stage, or two if the schedule is interleaved. A step is called as in PyTorch's
documents: the first stage is given tokens, the last one labels, and the schedule does the rest. The
last stage returns the outputs of all microbatches in one piece, as the schedule does by default.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import DistributedSpec, JobSpec, Schedule, ZeroGrad
from memgate_worker.jobs.distributed.cutting import Stage, cut
from memgate_worker.jobs.loop import place, ready
from memgate_worker.jobs.optimizers import make_optimizers, needs_closure
from memgate_worker.jobs.tasks.task import Batch, move
from memgate_worker.jobs.tasks.varying import num_iterations

_FED, _LEARNED = "input_ids", "labels"


class PipelineLoop:
    """A job of which one rank runs some stages."""

    def __init__(self, spec: JobSpec, model: nn.Module, device: str) -> None:
        """Cut the model, and put this rank's stages on the device."""
        divided = spec.distributed
        assert divided is not None
        whole = spec.batch_size * divided.num_microbatches
        self._spec, model, tasks = ready(spec.model_copy(update={"batch_size": whole}), model)
        self._batch = _check_batch(model, tasks[0].batch)
        self._device = device
        self._learn = _make_loss(model)
        made = place(self._spec, model, "cpu")
        stages = cut(made, _own_stages(divided), _num_stages(divided))
        self.model = nn.ModuleList(stages).to_empty(device=device)
        self._schedule = self._make_schedule(divided, stages)
        self._is_first = stages[0].place.is_first
        self._is_last = stages[-1].place.is_last
        self.optimizers = make_optimizers(spec.optimizer, self.model)
        if needs_closure(type(self.optimizers[0])):
            raise UnsupportedJobError(
                f"{spec.optimizer.name} calls the model itself, which a pipeline does not allow;"
                " use another optimizer"
            )

    def run(self) -> None:
        """Run all iterations; gradients are dropped before a step, since it has all passes."""
        for _ in range(num_iterations(self._spec)):
            if self._spec.zero_grad is not ZeroGrad.AFTER_STEP:
                self._zero_grad()
            batch = move(self._batch, self._device)
            fed, learned = batch.pop(_FED), batch.pop(_LEARNED)
            losses: list[Any] = []
            more = {"target": learned, "losses": losses} if self._is_last else {}
            # named, though never read: a script's variable holds them until the next turn
            outputs = self._schedule.step(*([fed] if self._is_first else []), **more, **batch)
            for optimizer in self.optimizers:
                optimizer.step()
            if self._spec.zero_grad is ZeroGrad.AFTER_STEP:
                self._zero_grad()
        del outputs

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _make_schedule(self, divided: DistributedSpec, stages: list[Stage]) -> Any:
        from torch.distributed import pipelining

        wrapped = [self._wrap(stage, divided) for stage in stages]
        kind = {
            Schedule.GPIPE: pipelining.ScheduleGPipe,
            Schedule.ONE_F_ONE_B: pipelining.Schedule1F1B,
            Schedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
        }[divided.pipeline_schedule]
        is_single = divided.stages_per_rank == 1
        return kind(
            wrapped[0] if is_single else wrapped,
            n_microbatches=divided.num_microbatches,
            loss_fn=self._learn,
        )

    def _wrap(self, stage: Stage, divided: DistributedSpec) -> Any:
        """Tell the schedule what goes in and out of a stage with each microbatch."""
        from torch.distributed.pipelining import PipelineStage

        config: Any = stage.model.config
        tokens = self._batch[_FED]
        shape = (tokens.shape[0] // divided.num_microbatches, *tokens.shape[1:])
        dtype = next(stage.parameters()).dtype

        def show(width: int) -> torch.Tensor:
            # gradients are sent back for what says that it needs them
            return torch.empty(*shape, width, device="meta", dtype=dtype, requires_grad=True)

        given = torch.empty(shape, device="meta", dtype=tokens.dtype)
        return PipelineStage(
            stage,
            stage.place.number,
            stage.place.total,
            torch.device(self._device, torch.cuda.current_device()),
            input_args=given if stage.place.is_first else show(config.hidden_size),
            output_args=show(config.vocab_size if stage.place.is_last else config.hidden_size),
        )


def _num_stages(divided: DistributedSpec) -> int:
    return divided.world_size * divided.stages_per_rank


def _own_stages(divided: DistributedSpec) -> list[int]:
    return list(range(dist.get_rank(), _num_stages(divided), divided.world_size))


def _make_loss(model: Any) -> Any:
    """Return the model's own loss of logits and labels."""
    loss, words = model.loss_function, model.config.vocab_size

    def learn(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        return loss(logits=logits, labels=labels, vocab_size=words)

    return learn


def _check_batch(model: nn.Module, batch: Batch) -> Batch:
    """Check that a model learns to write text, and of nothing but text."""
    known = {_FED, _LEARNED, "attention_mask", "position_ids"}
    if not known.issuperset(batch) or not {_FED, _LEARNED}.issubset(batch):
        raise UnsupportedJobError(
            f"distributed: pipelines are for models that learn to write text, and"
            f" {type(model).__name__} is fed {', '.join(sorted(batch))}; use your own script"
            " instead of a spec: memgate run"
        )
    return dict(batch)
