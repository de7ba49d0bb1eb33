"""Policies: which rule applies to a job, in Python and in the Lua that slurmctld runs."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from memgate_service.admission.core.policy import Action
from memgate_service.admission.core.rules import (
    Mode,
    PolicyChoice,
    PolicyError,
    Subject,
    parse_policy,
    resolve,
)
from tests.conftest import DATA
from tests.unit.slurm.test_lua import run_lua

CASES = json.loads((DATA / "policies.json").read_text())

needs_lua = pytest.mark.skipif(shutil.which("lua5.1") is None, reason="lua5.1 is missing")


def _shown(chosen: PolicyChoice) -> list[Any]:
    mode = "exempt" if chosen.is_exempt else str(chosen.mode)
    return [mode, chosen.rule, dict(chosen.on)]


@pytest.mark.parametrize("case", CASES["right"], ids=lambda case: case["about"])
def test_the_most_specific_rule_applies(case: dict[str, Any]) -> None:
    """Exemptions first, then user, account, QOS, partition or kind, namespace, cluster."""
    document = parse_policy(json.dumps(case["policy"]))

    assert _shown(resolve(document, Subject(**case["subject"]))) == case["want"]


@pytest.mark.parametrize("text", CASES["wrong"])
def test_what_is_wrong_or_unknown_is_refused(text: str) -> None:
    """A word that is misspelt must not silently change who is enforced."""
    with pytest.raises(PolicyError):
        parse_policy(text)


@needs_lua
def test_slurmctld_chooses_the_same_rules() -> None:
    """The controller's Lua cannot import Python's: every case is tried with both."""
    code = """
    local policy = require("memgate.policy")
    local given, says = cjson.decode(io.read("*a")), {right = {}, wrong = {}}
    for index, case in ipairs(given.right) do
      local chosen = policy.resolve(policy.parse(cjson.encode(case.policy)), case.subject)
      local on = next(chosen.on) and chosen.on or nil
      says.right[index] = {chosen.is_exempt and "exempt" or chosen.mode, chosen.rule, on}
    end
    for index, text in ipairs(given.wrong) do
      says.wrong[index] = pcall(policy.parse, text)
    end
    print(cjson.encode(says))
    """
    said = json.loads(run_lua(code, CASES))

    for got, case in zip(said["right"], CASES["right"], strict=True):
        mode, rule, *on = got
        assert [mode, rule, *(on or [{}])] == case["want"], case["about"]
    assert said["wrong"] == [False] * len(CASES["wrong"])


@pytest.mark.parametrize("action", list(Action))
def test_only_enforce_does_anything(action: Action) -> None:
    """In warn and audit nothing is refused, held or canceled, whatever was decided."""
    assert Mode.ENFORCE.apply(action) is action
    assert {Mode.WARN.apply(action), Mode.AUDIT.apply(action)} == {Action.ADMIT}
