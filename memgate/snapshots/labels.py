"""Where a block was allocated and where it was freed -> what it is for, if that tells.

Modest on purpose: what a stack does not show is unknown, and no layer is named.
"""

from __future__ import annotations

from memgate.snapshots.origins import Origin
from memgate.timeline import Category, Label

#: if it is kept
_KEPT = {
    Origin.MODEL: Category.PARAMETERS,
    Origin.FORWARD: Category.ACTIVATIONS,
    Origin.BACKWARD: Category.GRADIENTS,
    Origin.OPTIMIZER: Category.OPTIMIZER_STATE,
    Origin.WORKSPACE: Category.WORKSPACE,
}

_LABELS = {category: Label(category, "") for category in Category}


def find_label(origin: Origin | None, freed_in: Origin | None, *, is_freed: bool) -> Label:
    """Say what a block is for; ``freed_in`` is None if it is not known, too."""
    if origin not in _KEPT:
        return _LABELS[Category.OTHER]
    category = _KEPT[origin]
    if not is_freed or category is Category.WORKSPACE:
        return _LABELS[category]
    if freed_in is None:  # nothing tells whether it was kept
        return _LABELS[Category.OTHER]
    if freed_in is origin and origin is not Origin.MODEL:
        return _LABELS[Category.TEMPORARY]
    return _LABELS[category]
