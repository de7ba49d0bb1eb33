"""Timeline, Replay -> what each layer held at the peak, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from memgate.allocator.replay import Replay
from memgate.breakdown import live_blocks_at_peak
from memgate.timeline import Timeline


@dataclass(slots=True, kw_only=True)
class LayerNode:
    """A layer and those in it; sizes include them."""

    name: str
    size_bytes: int = 0
    children: dict[str, LayerNode] = field(default_factory=dict)

    def by_size(self) -> Iterator[LayerNode]:
        """Return what is in it, the largest first."""
        return iter(sorted(self.children.values(), key=lambda node: -node.size_bytes))


def find_layers(timeline: Timeline, replayed: Replay) -> LayerNode:
    """Return the tree of layers; what belongs to none is in the root alone."""
    root = LayerNode(name="")
    for block_id, size in live_blocks_at_peak(timeline, replayed).items():
        _add(root, timeline.labels[block_id].layer, size)
    return root


def _add(root: LayerNode, path: str, size: int) -> None:
    root.size_bytes += size
    node = root
    for name in filter(None, path.split(".")):
        node = node.children.setdefault(name, LayerNode(name=name))
        node.size_bytes += size


def to_document(node: LayerNode) -> Mapping[str, object]:
    """Return a tree as JSON has it."""
    return {
        "name": node.name,
        "size_bytes": node.size_bytes,
        "children": [to_document(child) for child in node.by_size()],
    }
