"""Policies of several authors: which of them applies, and what a namespace may change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memgate_service.admission.core.layers import PolicyLayers, PolicyPart, find_ineffective
from memgate_service.admission.core.rules import ACTIONS, Subject, parse_policy

_USUAL = {"reject": "reject", "bad_spec": "reject", "uncertain": "hold", "unanswered": "admit"}
_TEAM = Subject(user="ada", namespace="team", kind="Job.batch")


def _part(name: str, namespace: str = "", allows_any: bool = False, **said: Any) -> PolicyPart:
    document = parse_policy(msgspec.json.encode(said))
    return PolicyPart(name=name, document=document, namespace=namespace, allows_any=allows_any)


def _layers(*parts: PolicyPart, **base: Any) -> PolicyLayers:
    document = parse_policy(msgspec.json.encode(base))
    return PolicyLayers(base=document, parts=parts, usual=_USUAL)


@pytest.mark.parametrize(
    ("layers", "want_mode", "want_rule"),
    [
        pytest.param(_layers(mode="warn"), "warn", "cluster", id="only the operator's own"),
        pytest.param(
            _layers(_part("a", mode="audit"), mode="enforce"), "audit", "cluster", id="a resource"
        ),
        pytest.param(
            _layers(_part("b", mode="audit"), _part("a", mode="warn")),
            "warn",
            "cluster",
            id="of two the first by name",
        ),
        pytest.param(
            _layers(
                _part("b", rules=[{"user": "ada", "mode": "audit"}]),
                _part("a", rules=[{"namespace": "team", "mode": "warn"}]),
            ),
            "audit",
            "b/rules[1]",
            id="the most specific rule, whatever its name",
        ),
        pytest.param(
            _layers(
                _part("b", rules=[{"name": "x", "user": "ada", "mode": "audit"}]),
                _part("a", rules=[{"name": "y", "user": "a*", "mode": "warn"}]),
            ),
            "warn",
            "a/y",
            id="of equally specific rules the first by name",
        ),
        pytest.param(
            _layers(
                _part("a", rules=[{"namespace": "team", "mode": "warn"}]),
                rules=[{"namespace": "team", "mode": "audit"}],
            ),
            "warn",
            "a/rules[1]",
            id="a resource before the operator's file",
        ),
        pytest.param(
            _layers(_part("n", "team", mode="enforce"), mode="warn"),
            "enforce",
            "n",
            id="a namespace may tighten",
        ),
        pytest.param(
            _layers(_part("n", "team", mode="audit"), mode="warn"),
            "warn",
            "cluster",
            id="and not loosen",
        ),
        pytest.param(
            _layers(_part("n", "other", mode="enforce"), mode="warn"),
            "warn",
            "cluster",
            id="another namespace",
        ),
        pytest.param(
            _layers(_part("n", "team", mode="audit"), _part("c", allows_any=True, mode="warn")),
            "audit",
            "n",
            id="unless the cluster's allows it",
        ),
        pytest.param(
            _layers(
                _part("n", "team", mode="audit"),
                _part("c", allows_any=True, rules=[{"user": "ada", "mode": "warn"}]),
            ),
            "warn",
            "c/rules[1]",
            id="a cluster's rule about the user is more specific",
        ),
        pytest.param(
            _layers(
                _part(
                    "n",
                    "team",
                    mode="enforce",
                    rules=[{"kind": "Job.batch", "mode": "warn"}],
                ),
                mode="audit",
            ),
            "warn",
            "n/rules[1]",
            id="a namespace's own rule about the kind",
        ),
    ],
)
def test_what_applies(layers: PolicyLayers, want_mode: str, want_rule: str) -> None:
    """The most specific rule; of equals by name; a namespace only tightens."""
    chosen = layers.choose(_TEAM)

    assert (chosen.mode, chosen.rule) == (want_mode, want_rule)


def test_a_namespace_tightens_each_action_by_itself() -> None:
    """Also against what the gate does where no policy says anything."""
    own = _part("n", "team", on={"uncertain": "admit", "unanswered": "reject", "reject": "hold"})

    chosen = _layers(own).choose(_TEAM)

    assert chosen.on == {"unanswered": "reject"}
    assert chosen.rule == "n"


@pytest.mark.parametrize("allows_any", [True, False])
def test_a_namespace_exempts_nobody_unless_it_may(allows_any: bool) -> None:
    """An exemption loosens."""
    own = _part("n", "team", exempt=[{"user": "ada"}])
    layers = _layers(own, _part("c", allows_any=allows_any))

    assert layers.choose(_TEAM).is_exempt is allows_any
    assert not layers.choose(Subject(user="ada", namespace="other")).is_exempt
    notes = find_ineffective(layers, own)
    assert notes == ([] if allows_any else ["exempt has no effect"])


def test_the_clusters_exemptions_come_first() -> None:
    """A namespace cannot take them back."""
    cluster = _part("c", exempt=[{"name": "root", "user": "ada"}])
    layers = _layers(cluster, _part("n", "team", mode="enforce"))

    chosen = layers.choose(_TEAM)

    assert (chosen.is_exempt, chosen.rule) == (True, "c/root")


def test_what_has_no_effect_is_named() -> None:
    """With the field, its value and what applies instead."""
    own = _part(
        "n",
        "team",
        mode="audit",
        rules=[{"user": "bob", "on": {"reject": "admit"}, "mode": "warn"}],
    )

    assert find_ineffective(_layers(own), own) == [
        "mode audit is milder than enforce (cluster)",
        "rules[1].mode warn is milder than enforce (cluster)",
        "rules[1].on.reject admit is milder than reject",
    ]


def test_where_it_is_not_known_what_is_wanted_nothing_is_enforced() -> None:
    """For the whole cluster; for a namespace only if it could have loosened anything."""
    everywhere = PolicyLayers(unread={"": "policies cannot be read"})
    assert (everywhere.choose(_TEAM).mode, everywhere.choose(_TEAM).rule) == (
        "audit",
        "policies cannot be read",
    )
    here = PolicyLayers(unread={"team": "MemgatePolicy/n in team is wrong"})
    assert here.choose(_TEAM).mode == "enforce"
    free = PolicyLayers(unread=here.unread, parts=[_part("c", allows_any=True)])
    assert free.choose(_TEAM).mode == "audit"
    assert free.choose(Subject(namespace="other")).mode == "enforce"


def test_every_action_has_its_place_in_the_order() -> None:
    """A namespace may write any of them."""
    for decision, actions in ACTIONS.items():
        for action in actions:
            part = _part("n", "team", on={decision: action})
            layers = _layers(part)
            layers.choose(_TEAM)
            find_ineffective(layers, part)
