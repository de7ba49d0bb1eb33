"""Weights of ``schedtune``: ``make schedtune PEAKS=peaks.csv`` writes this file."""

from __future__ import annotations

#: of all runs, one for each feature
WEIGHTS: tuple[float, ...] = (0.0,) * 8

#: without the runs of a model, by its short name
WEIGHTS_WITHOUT: dict[str, tuple[float, ...]] = {}
