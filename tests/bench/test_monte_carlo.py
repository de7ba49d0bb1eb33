"""Random jobs, and engines against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench.monte_carlo import _is_known, draw_job, read_lines, write_table

MODELS: dict[str, Any] = {"vgg": {"source": "torchvision"}, "gpt": {"source": "transformers"}}


def test_a_job_follows_from_the_seed_and_its_number() -> None:
    """So a run that goes on draws the jobs that it would have drawn."""
    drawn = [draw_job(1, place, MODELS) for place in range(200)]

    assert drawn == [draw_job(1, place, dict(reversed(MODELS.items()))) for place in range(200)]
    assert drawn[0] != draw_job(2, 0, MODELS) | {"number": 0}
    assert {one["model"] for one in drawn} == {"vgg", "gpt"}
    assert max(one["batch_size"] for one in drawn if one["model"] == "gpt") <= 60
    assert max(one["batch_size"] for one in drawn if one["model"] == "vgg") > 500


def test_what_was_asked_is_not_asked_again(tmp_path: Path) -> None:
    """A line that was cut off, another seed's, or one without an engine is."""
    drawn = draw_job(1, 0, MODELS)
    path = tmp_path / "lines"
    path.write_text(f'\n{json.dumps({**drawn, "said": {"phantom": {}}})}\n{{"number": 1, "sa')

    known = read_lines(path)

    assert _is_known(drawn, known, ["phantom"])
    assert not _is_known(drawn, known, ["phantom", "horus"])
    assert not _is_known(drawn | {"batch_size": 0}, known, ["phantom"])
    assert not _is_known(draw_job(1, 1, MODELS), known, ["phantom"])
    assert read_lines(tmp_path / "none") == {}


def test_engines_are_held_against_the_first() -> None:
    """Peaks of 100 and 110, one decision of two otherwise: score 0.7 / 2 + 0.3 / 10."""

    def line(ours: str, theirs: str) -> dict[str, Any]:
        said = {
            "phantom": {"decision": ours, "peak": 100},
            "horus": {"decision": theirs, "peak": 110},
            "llmem": {"error": "no language model"},
        }
        return {"said": said}

    lines = [line("admit", "admit"), line("reject", "admit"), line("uncertain", "admit")]
    text = write_table(lines, ["phantom", "horus", "llmem"])

    assert "| phantom | 3 | 0.00 % | 2 | 0.0 % | 0 | 0 | 0.000 |" in text
    assert "| horus | 3 | 10.00 % | 2 | 50.0 % | 1 | 0 | 0.380 |" in text
    assert "| llmem | 0 |  | 0 |  | 0 | 0 |  |" in text
