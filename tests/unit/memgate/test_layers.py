"""What each layer held at the peak."""

from __future__ import annotations

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.layers import find_layers
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from tests.builders import AMPLE


def test_layers_are_a_tree_with_the_largest_first() -> None:
    """A layer counts what is in it; what is gone at the peak counts nowhere."""
    paths = ("net.a", "net.b.c", "", "net.b", "net.a")
    labels = tuple(Label(Category.ACTIVATIONS, path) for path in paths)
    events = (Alloc(0, 100), Free(0), Alloc(1, 600), Alloc(2, 50), Alloc(3, 30), Alloc(4, 900))
    timeline = Timeline(events=events, labels=labels)

    root = find_layers(timeline, replay(timeline, parse_alloc_conf(""), AMPLE))

    assert root.size_bytes == 1580
    (net,) = root.children
    assert [(layer.name, layer.size_bytes) for layer in net.children] == [("a", 900), ("b", 630)]
    assert net.size_bytes == 1530


def test_blocks_without_labels_are_in_no_layer() -> None:
    """A recording may know nothing but sizes."""
    timeline = Timeline(events=(Alloc(0, 100),))

    root = find_layers(timeline, replay(timeline, parse_alloc_conf(""), AMPLE))

    assert (root.size_bytes, root.children) == (100, ())
