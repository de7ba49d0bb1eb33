"""``memgate doctor --slurm``: an administrator's mistakes are found, and told as theirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.gpus import find_gpu
from memgate.schemas import GpuRead
from memgate_service.admission.slurm.doctor import examine
from tests.unit.slurm.test_lua import PLUGINS, pytestmark

__all__ = ["pytestmark"]

CONFIG = "JobSubmitPlugins        = lua\nCliFilterPlugins        = lua\n"
GPUS = ("t4", "a100-80")


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """Set everything up as the page says."""
    shutil.copytree(PLUGINS / "memgate", tmp_path / "memgate")
    shutil.copy(PLUGINS / "memgate.policy.json", tmp_path)
    key = tmp_path / "memgate.key"
    key.write_text("mg_1_secret\n")
    key.chmod(0o600)
    _set(tmp_path)
    return tmp_path


def _set(etc: Path, **settings: Any) -> None:
    usual = {"key_file": f"{etc}/memgate.key", "audit_file": f"{etc}/audit.jsonl"}
    given = [f"{name} = {value!r}," for name, value in (usual | settings).items()]
    if "gpu_of_type" not in settings:
        given.append("gpu_of_type = {t4 = 't4'},")
    (etc / "memgate.conf.lua").write_text(f"return {{{' '.join(given)}}}")


def _wrong(etc: Path, *, is_away: bool = False, config: str = CONFIG, gres: str = "") -> list[str]:
    def serve(request: httpx2.Request) -> httpx2.Response:
        if is_away:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json=[GpuRead.of(find_gpu(name)).model_dump() for name in GPUS])

    def connect(url: str, key: str) -> Client:
        assert key in ("mg_1_secret", "")
        return Client(url, api_key=key, transport=httpx2.MockTransport(serve), num_tries=1)

    def slurm(command: list[str]) -> str:
        return config if command[0] == "scontrol" else gres

    checks = list(examine(etc / "memgate.conf.lua", connect, slurm=slurm))
    return [check.line for check in checks if check.wrong]


def test_a_set_up_as_the_page_says_is_right(etc: Path) -> None:
    """Nothing to complain about."""
    assert _wrong(etc, gres="gpu:t4:2(S:0)\n(null)\n") == []


def test_settings_that_cannot_be_read_come_first(etc: Path) -> None:
    """With what slurmctld's own Lua says; the rest is not known then."""
    (etc / "memgate.conf.lua").write_text("return {urls = 1}")
    (said,) = _wrong(etc)
    assert "there is no setting urls" in said


def test_each_mistake_is_named(etc: Path) -> None:
    """A wrong GPU, an empty key, a policy, a missing directory, plugins and gres types."""
    _set(etc, default_gpu="a100-8", audit_file="/nonexistent/audit.jsonl")
    (etc / "memgate.key").write_text("\n")
    (etc / "memgate.policy.json").write_text("{")
    said = "\n".join(_wrong(etc, config="JobSubmitPlugins = lua\n", gres="gpu:h100:8\n"))

    assert "there is no 'a100-8', but 'a100-80'" in said
    assert "memgate.key: the file is empty" in said
    assert "the policy: the policy cannot be read" in said
    assert "/nonexistent is not there" in said
    assert "CliFilterPlugins without lua" in said
    assert "which GPU h100 is has not been set up" in said


def test_a_service_that_is_away_and_an_open_key_are_named(etc: Path) -> None:
    """Before users see that nothing is checked."""
    (etc / "memgate.key").chmod(0o644)
    said = "\n".join(_wrong(etc, is_away=True))

    assert "memgate answers, and takes the key: " in said
    assert "others than its owner can read it" in said
