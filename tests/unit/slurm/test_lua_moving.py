"""Changes of a job that waits: do they get past the policy? With a real Slurm: `test_accounts`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.slurm.test_lua import pytestmark, run_lua

__all__ = ["pytestmark"]

_JUDGE = """
local judging, moving = require("memgate.judging"), require("memgate.moving")
local given = cjson.decode(io.read("*a"))
slurm = {}
if given.is_known then judging.remember({user_id = 7, user_name = "ada"}) end
local found = moving.judge(given.settings, given.policy, given.change, given.job, given.record, {})
print(cjson.encode(found and {found.is_refused, found.subject.user, found.decision} or {}))
"""

SETTINGS = {
    "gpu_of_type": {"t4": "t4"},
    "gpu_of_feature": {},
    "gpu_of_partition": {},
    "default_gpu": "",
    "on_reject": "reject",
    "on_undescribed": "admit",
    "on_unanswered": "hold",
}

JOB = {"user_id": 7, "partition": "lax", "tres_per_node": "gres:gpu:t4:1"}

#: only in "strict" anything is enforced, but for one user
POLICY = {"mode": "warn", "rules": [{"partition": "strict", "mode": "enforce"}]}
OF_USERS = POLICY | {"rules": [*POLICY["rules"], {"user": "ada", "mode": "audit"}]}
REJECTED = {"decision": "reject", "mode": "warn"}


def _judge(*, is_known: bool = True, **given: Any) -> list[Any]:
    usual = {"settings": SETTINGS, "policy": POLICY, "job": JOB, "change": {"partition": "strict"}}
    said: list[Any] = json.loads(run_lua(_JUDGE, usual | given | {"is_known": is_known}) or "[]")
    return list(said)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"record": REJECTED}, [True, "ada", "reject"]),
        ({"record": REJECTED, "change": {"partition": "lax"}}, []),
        ({"record": REJECTED, "job": JOB | {"partition": "strict"}}, []),
        ({"record": {"decision": "admit"}}, []),
        ({"record": {"decision": "pending"}}, [True, "ada", "pending"]),
        ({}, []),  # nobody has described it, and such jobs are let in everywhere
        ({"settings": SETTINGS | {"on_undescribed": "reject"}}, [True, "ada", "undescribed"]),
        ({"policy": OF_USERS, "record": REJECTED}, []),
    ],
)
def test_only_a_stricter_rule_about_what_is_known_refuses(
    given: dict[str, Any], want: list[Any]
) -> None:
    """What fits may go anywhere, and so may a job of which the new rule wants nothing else."""
    assert _judge(**given) == want


def test_without_the_users_name_a_rule_about_users_is_not_passed_over() -> None:
    """After a restart Slurm does not tell names: a rule about users may be the milder one."""
    assert _judge(is_known=False, policy=OF_USERS, record=REJECTED) == []
    assert _judge(is_known=False, record=REJECTED) == [True, "7", "reject"]
