"""``memgate doctor --slurm``: an administrator's mistakes are found, and told as theirs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.gpus import find_gpu
from memgate.schemas import GpuRead
from memgate_service.admission.core.doctor import Check
from memgate_service.admission.core.rules import PolicyDocument
from memgate_service.admission.slurm.commands import SlurmError
from memgate_service.admission.slurm.doctor import examine
from memgate_service.admission.slurm.programs import check_programs
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
    (tmp_path / "release.alive").touch()
    _set(tmp_path)
    return tmp_path


def _set(etc: Path, **settings: Any) -> None:
    usual = {"key_file": f"{etc}/memgate.key", "audit_file": f"{etc}/audit.jsonl"}
    given = [f"{name} = {value!r}," for name, value in (usual | settings).items()]
    if "gpu_of_type" not in settings:
        given.append("gpu_of_type = {t4 = 't4'},")
    (etc / "memgate.conf.lua").write_text(f"return {{{' '.join(given)}}}")


def _wrong(etc: Path, **options: Any) -> list[str]:
    return [check.line for check in _examine(etc, **options) if check.wrong]


def _examine(
    etc: Path, *, is_away: bool = False, config: str = CONFIG, gres: str = ""
) -> list[Check]:
    def serve(request: httpx2.Request) -> httpx2.Response:
        if is_away:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json=[GpuRead.of(find_gpu(name)).model_dump() for name in GPUS])

    def connect(url: str, key: str) -> Client:
        assert key in ("mg_1_secret", "")
        return Client(url, api_key=key, transport=httpx2.MockTransport(serve), num_tries=1)

    def slurm(command: list[str]) -> str:
        return config if command[0] == "scontrol" else gres

    return list(examine(etc / "memgate.conf.lua", connect, slurm=slurm))


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


def test_programs_that_do_not_run_are_named(etc: Path) -> None:
    """The releaser always; the broker where the policy rehearses."""
    long_ago = time.time() - 300
    os.utime(etc / "release.alive", (long_ago, long_ago))
    (etc / "memgate.policy.json").write_text(json.dumps({"on": {"undescribed": "rehearse"}}))
    said = "\n".join(_wrong(etc))

    assert "memgate slurm release runs: it has not looked for 300 s" in said
    assert "rehearse.alive is not there: it has never looked" in said


def test_a_releaser_that_may_change_nothing_is_named(etc: Path) -> None:
    """It runs as SlurmUser, whose uid must be in the settings."""
    config = CONFIG + "SlurmUser               = slurm(64030)\n"
    (said,) = _wrong(etc, config=config)
    assert "admins: SlurmUser is slurm(64030), which is not one: held jobs are not settled" in said
    text = (etc / "memgate.conf.lua").read_text()
    (etc / "memgate.conf.lua").write_text(text.replace("return {", "return {admins = {0, 64030}, "))
    assert _wrong(etc, config=config) == []


@pytest.mark.parametrize(
    ("policy", "enforced", "want"),
    [
        ({}, "none", ""),
        ({"exempt": [{"account": "ops"}]}, "none", "without associations: users name any"),
        ({"rules": [{"qos": "a", "mode": "warn"}]}, "associations", "without qos: users name any"),
        ({"rules": [{"qos": "a", "account": "b"}]}, "associations,limits,qos", ""),
    ],
)
def test_an_account_is_worth_what_slurm_makes_of_it(
    etc: Path, policy: dict[str, Any], enforced: str, want: str
) -> None:
    """GIVEN rules about accounts that Slurm does not check, THEN that is said."""
    (etc / "memgate.policy.json").write_text(json.dumps(policy))
    said = _wrong(etc, config=CONFIG + f"AccountingStorageEnforce = {enforced}\n")

    assert [want in line for line in said] == ([True] if want else [])


def test_how_jobs_are_measured_is_looked_up(etc: Path) -> None:
    """By accounting, by our scripts; half of them is a mistake, none of them is only noted."""
    ours = etc / "epilog.sh"
    ours.write_text("/opt/memgate/bin/memgate slurm epilog")

    def line(config: str) -> str:
        return _examine(etc, config=CONFIG + config)[-1].line

    both = f"Prolog = /elsewhere/memgate-prolog.sh\nEpilog = {ours}\n"
    assert line(both) == "ok     what jobs took of their GPUs"
    assert line("AccountingStorageTRES = cpu,gres/gpumem\n").startswith("ok ")
    assert "Prolog does not run memgate" in line(f"Epilog = {ours}\nProlog = (null)\n")
    assert line("").startswith("note   what jobs took of their GPUs: not measured")


def test_a_slurm_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """What depends on its configuration is not guessed."""

    def away(_: list[str]) -> str:
        raise SlurmError("scontrol cannot be run: No such file or directory")

    settings = {"audit_file": str(tmp_path / "audit.jsonl"), "on_undescribed": "admit"}
    checks = list(check_programs(settings, PolicyDocument(), away))

    assert checks[-1].wrong == "scontrol cannot be run: No such file or directory"


def test_a_client_key_that_users_cannot_read_is_named(etc: Path) -> None:
    """The plugin in sbatch would be silent; one without a key in it as well."""
    key = etc / "users.key"
    key.write_text("mg_2_secret")
    key.chmod(0o600)
    _set(etc, client_key_file=str(key))
    assert "users cannot read it" in "\n".join(_wrong(etc))
    key.write_text(" ")
    assert "client_key_file: the file is empty" in "\n".join(_wrong(etc))
    key.write_text("mg_2_secret")
    key.chmod(0o644)
    assert _wrong(etc) == []
