"""Checks of a Slurm set-up: settings, keys, policy, service, GPUs, plugins, programs, accounting.

Changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memgate.client.clients import Client
from memgate.errors import InputError
from memgate_service.admission.core.doctor import (
    Check,
    check_gpus,
    check_policy,
    check_server,
    try_out,
)
from memgate_service.admission.core.rules import PolicyDocument, parse_policy
from memgate_service.admission.slurm.commands import run
from memgate_service.admission.slurm.programs import check_programs

#: reads the settings as slurmctld does
_READ = """
package.path = arg[1] .. "/?.lua;" .. package.path
require("memgate.paths")
require("memgate.gate")
local settings = require("memgate.settings").read(arg[2])
print(require("cjson.safe").encode(settings))
"""
_TIMEOUT_SECONDS = 20.0


def read_settings(conf: Path, lua: str = "lua5.1") -> dict[str, Any]:
    """Read memgate.conf.lua with the plugin's own Lua.

    Raises:
        InputError: with what Lua says is wrong.
    """
    command = [lua, "-", str(conf.parent), str(conf)]
    try:
        ran = subprocess.run(
            command,
            input=_READ,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{lua} cannot be run: {error}") from None
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or ["nothing"]
        raise InputError(said[0].removeprefix(f"{lua}: "))
    settings: dict[str, Any] = json.loads(ran.stdout)
    return settings


def examine(
    conf: Path,
    connect: Callable[[str, str], Client],
    *,
    lua: str = "lua5.1",
    slurm: Callable[[list[str]], str] = run,
) -> Iterator[Check]:
    """Yield what was checked; ``connect`` makes a client of an address and a key."""
    found: dict[str, Any] = {}

    def read() -> str:
        found.update(read_settings(conf, lua))
        return ""

    yield try_out(str(conf), read, "the page on Slurm lists the settings")
    if not found:
        return
    policy = Path(found["policy_path"])
    document: list[PolicyDocument] = []

    def read_policy() -> None:
        document.append(_read_policy(policy, is_optional=found["is_policy_optional"]))

    yield check_policy(read_policy)
    key_file = found["key_file"]
    yield try_out(
        f"the key in {key_file or 'no file'}", lambda: _check_key(key_file), "step 3 of the set-up"
    )
    yield try_out("client_key_file", lambda: _check_client_key(found["client_key_file"]), "step 3")
    with connect(found["url"], _read_key(key_file)) as client:
        answered, names = check_server(client)
        yield answered
    tables = ("gpu_of_type", "gpu_of_feature", "gpu_of_partition")
    cards = [name for table in tables for name in dict(found[table]).values()]
    yield check_gpus(str(conf), [*cards, *filter(None, [found["default_gpu"]])], names)
    yield try_out("audit_file", lambda: _check_spool(found["audit_file"]), "step 2 of the set-up")
    yield try_out("slurm.conf", lambda: _check_plugins(slurm), "step 5 of the set-up")
    yield try_out("gres types", lambda: _check_types(slurm, found), "add them to gpu_of_type")
    yield from check_programs(found, document[0] if document else PolicyDocument(), slurm)


def _read_policy(path: Path, *, is_optional: bool) -> PolicyDocument:
    if is_optional and not path.exists():
        return PolicyDocument()
    return parse_policy(path.read_bytes())


def _read_key(path: str) -> str:
    try:
        return Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _check_key(path: str) -> str:
    if not path:
        return ""  # memgate may need none; whether it does, it says itself
    if not Path(path).read_text().strip():
        return "the file is empty"
    is_open = Path(path).stat().st_mode & 0o077
    return "others than its owner can read it" if is_open else ""


def _check_client_key(path: str) -> str:
    if not path:
        return ""
    if not Path(path).read_text().strip():
        return "the file is empty"
    is_open = Path(path).stat().st_mode & 0o004
    return "" if is_open else "users cannot read it, and cli_filter.lua runs as they"


def _check_spool(path: str) -> str:
    if not path:
        return "no audit is kept but for slurmctld's log"
    directory = Path(path).parent
    if not directory.is_dir():
        return f"{directory} is not there"
    return "" if os.access(directory, os.W_OK) else f"{directory} cannot be written"


def _check_plugins(slurm: Callable[[list[str]], str]) -> str:
    said = slurm(["scontrol", "show", "config"])
    wanted = ("JobSubmitPlugins", "CliFilterPlugins")
    found = dict(re.findall(r"^(\w+)\s*= (.*)$", said, re.MULTILINE))
    missing = [name for name in wanted if "lua" not in found.get(name, "")]
    return f"{' and '.join(missing)} without lua" if missing else ""


def _check_types(slurm: Callable[[list[str]], str], settings: dict[str, Any]) -> str:
    said = slurm(["sinfo", "--noheader", "--format=%G"])
    types = set(re.findall(r"gpu:([A-Za-z][\w.-]*):\d+", said))
    missing = sorted(types - set(settings["gpu_of_type"]))
    return f"which GPU {', '.join(missing)} is has not been set up" if missing else ""
