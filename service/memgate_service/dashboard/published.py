"""The figures of published estimators next to ours, as docs/accuracy.md has them.

They are not measurements of this installation: 169 jobs that the authors of xMem ran on real GPUs.
A test compares them with that page.
"""

from __future__ import annotations

from typing import NamedTuple


class Estimator(NamedTuple):
    """How good an estimator is; errors in percent, relative to what NVML showed."""

    name: str
    is_ours: bool
    median_error: str
    p90: str
    first_right: str
    capped_right: str
    seconds: str


PUBLISHED = (
    Estimator("phantom, torch-2.6", True, "0.76 %", "6.5 %", "98.8 %", "98.3 % of 459", "0.4"),
    Estimator("phantom, torch-2.14", True, "2.78 %", "7.0 %", "99.4 %", "95.2 % of 459", "0.4"),
    Estimator("xMem", False, "2.37 %", "6.9 %", "98.8 %", "82.4 % of 142", "21"),
    Estimator("DNNMem", False, "20.4 %", "32.6 %", "89.8 %", "36.0 % of 136", "14"),
    Estimator("SchedTune", False, "31.0 %", "64.9 %", "88.4 %", "31.8 % of 148", "0.25"),
    Estimator("LLMem", False, "40.7 %", "78.7 %", "76.6 %", "", "23"),
)
