"""Checks of what runs beside Slurm: the releaser, the broker, the sampler, and accounting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memgate_service.admission.core.doctor import Check, try_out
from memgate_service.admission.core.rules import PolicyDocument

#: programs look every few seconds, and touch a file when they have
_MAX_AGE_SECONDS = 60.0


def check_programs(
    settings: dict[str, Any], policy: PolicyDocument, slurm: Callable[[list[str]], str]
) -> Iterator[Check]:
    """Yield what was checked; ``slurm`` runs one of its commands."""
    spool = Path(settings["audit_file"] or "/var/spool/memgate/audit.jsonl").parent
    yield try_out(
        "memgate slurm release runs",
        lambda: _check_alive(spool / "release.alive"),
        "held jobs wait for their timers, no audit is sent: the page on Slurm, Hold and release",
    )
    if is_rehearsed(settings, policy):
        yield try_out(
            "memgate slurm rehearse runs",
            lambda: _check_alive(spool / "rehearse.alive"),
            "jobs without a description wait for their timers: the page on Slurm, Rehearsals",
        )
    config: dict[str, str] = {}

    def ask() -> str:
        config.update(re.findall(r"^(\w+)\s*= (.*)$", slurm(["scontrol", "show", "config"]), re.M))
        return ""

    asked = try_out("scontrol show config", ask)
    if asked.wrong:
        yield asked
        return
    yield _check_admins(settings["admins"], config.get("SlurmUser", ""))
    yield _check_accounts(policy, config.get("AccountingStorageEnforce", ""))
    yield _check_measuring(config)


def is_rehearsed(settings: dict[str, Any], policy: PolicyDocument) -> bool:
    """Say whether any job is to be rehearsed."""
    choices = [policy.on, *(rule.on for rule in policy.rules)]
    by_policy = any(on.get("undescribed") == "rehearse" for on in choices)
    return by_policy or settings["on_undescribed"] == "rehearse"


def _check_alive(path: Path) -> str:
    if not path.exists():
        return f"{path} is not there: it has never looked"
    age = time.time() - path.stat().st_mtime
    return f"it has not looked for {age:.0f} s" if age > _MAX_AGE_SECONDS else ""


def _check_admins(admins: list[int], slurm_user: str) -> Check:
    """The releaser runs as SlurmUser, and may change what memgate holds only if it is listed."""
    uid = re.search(r"\((\d+)\)", slurm_user)
    is_missing = uid is not None and int(uid[1]) not in admins
    wrong = f"SlurmUser is {slurm_user}, which is not one: held jobs are not settled"
    return Check(about="admins", wrong=wrong if is_missing else "", help="step 4 of the set-up")


def _check_accounts(policy: PolicyDocument, enforced: str) -> Check:
    """An account or a QOS is what the user says, unless Slurm checks that it is the user's."""
    about = "accounts and QOS of the policy"
    accounts = [*(one.account for one in policy.exempt), *(one.account for one in policy.rules)]
    by_account = any(account is not None for account in accounts)
    by_qos = any(rule.qos is not None for rule in policy.rules)
    missing = [
        name
        for name, is_used in (("associations", by_account), ("qos", by_qos))
        if is_used and name not in enforced
    ]
    wrong = f"AccountingStorageEnforce without {', '.join(missing)}: users name any they like"
    return Check(about=about, wrong=wrong if missing else "", help="set it in slurm.conf")


def _check_measuring(config: dict[str, str]) -> Check:
    """What jobs took is measured by our prolog and epilog, or by accounting."""
    about = "what jobs took of their GPUs"
    if "gres/gpumem" in config.get("AccountingStorageTRES", ""):
        return Check(about=about)
    scripts = [config.get(name, "(null)") for name in ("Prolog", "Epilog")]
    set_up = [_runs_memgate(script) for script in scripts]
    if all(set_up):
        return Check(about=about)
    if any(set_up):
        lacks = "Prolog" if set_up[1] else "Epilog"
        return Check(about=about, wrong=f"{lacks} does not run memgate", help="both are needed")
    return Check(about=about, note="not measured: no Prolog and Epilog of ours, no gres/gpumem")


def _runs_memgate(script: str) -> bool:
    """Say whether a script calls us; one that is only on compute nodes is judged by its name."""
    try:
        return "memgate" in Path(script).read_text(errors="replace") or "memgate" in script
    except OSError:
        return "memgate" in script
