"""What the operator's policy makes of what is known: one table for every gate."""

from __future__ import annotations

import pytest

from memgate.decision import Decision
from memgate.errors import Fault
from memgate_service.admission.core.policy import Action, Policy, decide_fault
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.admission.slurm.settling import make_policy

_STRICT = Policy(uncertain=Action.REJECT, unmeasured=Action.REJECT, unknown=Action.REJECT)


@pytest.mark.parametrize("policy", [Policy(), AdmissionSettings().policy], ids=["core", "kube"])
def test_by_default_only_what_does_not_fit_is_refused(policy: Policy) -> None:
    """And what its author described wrongly; nobody is refused for a fault of ours."""
    assert policy.mistaken is Action.REJECT
    refused = [one for one in Decision if policy.choose(one) is Action.REJECT]
    assert refused == [Decision.REJECT]
    for fault in (Fault.JOB, Fault.UNSUPPORTED, Fault.OPERATOR, Fault.PASSING):
        assert policy.choose(decide_fault(fault), fault) is Action.ADMIT


@pytest.mark.parametrize(
    ("fault", "want"),
    [
        (Fault.JOB, Decision.UNCERTAIN),
        (Fault.UNSUPPORTED, Decision.UNCERTAIN),
        (Fault.OPERATOR, Decision.UNKNOWN),
        (Fault.PASSING, Decision.UNKNOWN),
    ],
)
def test_only_what_may_change_counts_as_no_answer(fault: Fault, want: Decision) -> None:
    """A job that cannot be run has its answer: it is not asked about again."""
    assert decide_fault(fault) is want


def test_a_strict_operator_gets_what_was_chosen() -> None:
    """Each choice is for its own case."""
    assert _STRICT.choose(Decision.UNCERTAIN) is Action.REJECT
    assert _STRICT.choose(Decision.UNCERTAIN, Fault.UNSUPPORTED) is Action.REJECT
    assert _STRICT.choose(Decision.UNKNOWN, Fault.PASSING) is Action.REJECT
    assert _STRICT.choose(Decision.ADMIT) is Action.ADMIT


def test_patience_comes_before_the_choice() -> None:
    """Until it has run out, nothing becomes of a job without an answer."""
    policy = Policy(unknown=Action.REJECT, patience_seconds=600)
    choices = [policy.choose(Decision.UNKNOWN, None, waited) for waited in (0, 599, 600)]
    assert choices == [Action.WAIT, Action.WAIT, Action.REJECT]
    assert policy.choose(Decision.REJECT, None, 0) is Action.REJECT


@pytest.mark.parametrize("fault", [Fault.JOB, Fault.UNSUPPORTED, Fault.OPERATOR, Fault.PASSING])
def test_no_policy_of_slurms_cancels_for_a_fault_that_is_not_the_authors(fault: Fault) -> None:
    """Cancel is the strictest choice there is."""
    policy = make_policy(
        rejected=Action.REJECT,
        uncertain=Action.REJECT,
        unanswered=Action.HOLD,
        patience_seconds=0,
    )
    assert policy.choose(decide_fault(fault), fault) is Action.HOLD
