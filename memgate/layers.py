"""Timeline, Replay -> what each layer held at the peak, as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from memgate.allocator.replay import Replay
from memgate.breakdown import live_blocks_at_peak
from memgate.timeline import Timeline


class Layer(BaseModel):
    """A layer and those in it, the largest first; sizes include them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    size_bytes: int
    children: tuple[Layer, ...] = ()


def find_layers(timeline: Timeline, replayed: Replay) -> Layer:
    """Return the tree of layers; what belongs to none is in the root alone."""
    root = _GrowingLayer()
    for block_id, size in live_blocks_at_peak(timeline, replayed).items():
        _add(root, timeline.labels[block_id].layer if timeline.labels else "", size)
    return root.grown("")


@dataclass(slots=True)
class _GrowingLayer:
    size_bytes: int = 0
    children: dict[str, _GrowingLayer] = field(default_factory=dict)

    def grown(self, name: str) -> Layer:
        children = (child.grown(name) for name, child in self.children.items())
        by_size = sorted(children, key=lambda layer: -layer.size_bytes)
        return Layer(name=name, size_bytes=self.size_bytes, children=tuple(by_size))


def _add(root: _GrowingLayer, path: str, size: int) -> None:
    root.size_bytes += size
    layer = root
    for name in filter(None, path.split(".")):
        layer = layer.children.setdefault(name, _GrowingLayer())
        layer.size_bytes += size
