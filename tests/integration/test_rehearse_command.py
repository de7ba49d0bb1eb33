"""``memgate rehearse``: what a shadow pod runs, with a real script on the phantom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.units import GIB
from memgate_service.admission.core.rehearsal import read_result
from tests.integration.recording import RUNTIME, TRAIN, needs_runtime

pytestmark = needs_runtime


@pytest.fixture
def rehearse(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script as a shadow does: nothing is there but what its variables name."""
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / "made" / name.lower()))

    def rehearse_script(text: str) -> Any:
        script, file = tmp_path / "train.py", tmp_path / "result.json"
        script.write_text(TRAIN + text)
        ran = run("rehearse", "--gpu", "t4", "--result", file, "--", RUNTIME.python, script)
        assert (ran.status, file.stat().st_size < 4096) == (0, True), ran.err
        return read_result(file.read_text())

    return rehearse_script


def test_what_a_job_needs_comes_back_in_a_small_file(rehearse: Any) -> None:
    """20 GiB on a T4: refused, with the figure and the reason in words."""
    found = rehearse("kept = torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\nstep()\n")

    assert (found.is_refused, found.is_known, found.gpu) == (True, True, "t4")
    assert 20 * GIB < found.needs_bytes < 22 * GIB
    assert "needs 20." in found.message


def test_a_job_that_fails_tells_nothing_about_memory(rehearse: Any) -> None:
    """Its end is a result, too; nobody is refused by it."""
    found = rehearse("raise SystemExit('no data here')\n")

    assert (found.is_refused, found.is_known) == (False, False)
    assert "no data here" in found.message
