"""``memgate policy``: a policy is checked, and explained for a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

POLICY = {
    "mode": "warn",
    "on": {"uncertain": "hold"},
    "exempt": [{"name": "operators", "group": "0"}, {"label": {"team": "infra"}}],
    "rules": [{"name": "paying", "account": "lab", "mode": "enforce"}],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a policy."""
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    return path


def test_a_policy_is_checked(run: Any, path: Path) -> None:
    """Right, or what is wrong with it."""
    assert (
        "is right: warn for the cluster, 1 rules, 2 exemptions" in run("policy", "check", path).out
    )
    path.write_text('{"mode": "off"}')
    ran = run("policy", "check", path)
    assert (ran.status, "Invalid enum value" in ran.err) == (2, True)
    assert "No such file" in run("policy", "check", path.with_name("none")).err


EXPLAINED = [
    (["--account", "lab"], "paying: enforce: decisions are carried out"),
    (["--account", "other"], "cluster: warn: people are told; nothing is refused"),
    (["--group", "0"], "operators: exempt: nothing is asked, said or done"),
    (["--label", "team=infra"], "exempt[2]: exempt"),
]


@pytest.mark.parametrize(("options", "want"), EXPLAINED)
def test_the_rule_for_a_job_is_explained(
    run: Any, path: Path, options: list[str], want: str
) -> None:
    """Which one applies, and what would happen."""
    ran = run("policy", "explain", path, *options)

    assert ran.status == 0
    assert want in ran.out
    assert ("uncertain: hold" in ran.out) == ("exempt" not in want)


def test_an_explanation_is_json_for_programs(run: Any, path: Path) -> None:
    """The same, and a wrong label is named."""
    said = json.loads(run("policy", "explain", path, "--account", "lab", "--json").out)
    assert said == {"mode": "enforce", "rule": "paying", "is_exempt": False, "on": POLICY["on"]}
    assert "write NAME=VALUE" in run("policy", "explain", path, "--label", "x").err
