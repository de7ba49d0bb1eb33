"""Notes which ranks have the stages of a job's pipeline: each of them has other layers."""

from __future__ import annotations

from typing import Any

from .noticing import on_import

#: of all stages of the pipeline that this process has a part in
ranks_of_stages: list[int] = []


def notice_pipelines() -> None:
    """Change PyTorch's stages as they are imported."""
    on_import("torch.distributed.pipelining.stage", _change_stages)


def _change_stages(module: Any) -> None:
    kind = module._PipelineStageBase
    make = kind.__init__

    def noted_make(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        distributed = module.dist
        group = self.group if self.group is not None else distributed.group.WORLD
        ranks_of_stages[:] = distributed.get_process_group_ranks(group)

    kind.__init__ = noted_make
