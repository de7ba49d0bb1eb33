"""DNNMem: the operators of a static graph, run through the caching allocator.

Gao et al., "Estimating GPU Memory Consumption of Deep Learning Models" (ESEC/FSE 2020). Weights
first, then the outputs of the forward pass in order, each kept until the backward pass has gone
over its operator; there, gradients of outputs and of weights. The allocator is ours.
"""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.jobspec import JobSpec
from memgate.timeline import (
    Alloc,
    Category,
    Free,
    Label,
    Phase,
    PhaseStart,
    Timeline,
    TimelineEvent,
    make_phases,
)


class _Events:
    """Events in order, and what each block is for."""

    def __init__(self) -> None:
        self.events: list[TimelineEvent] = []
        self.labels: list[Label] = []
        self.phases: list[PhaseStart] = []

    def start(self, phase: Phase) -> None:
        """From here on it is in this phase."""
        self.phases.append(PhaseStart(len(self.events), phase))

    def take(self, size_bytes: int, category: Category) -> int:
        """Ask for memory; the block's id."""
        self.labels.append(Label(category, ""))
        self.events.append(Alloc(len(self.labels) - 1, size_bytes))
        return len(self.labels) - 1

    def give(self, block_id: int) -> None:
        """Give memory back."""
        self.events.append(Free(block_id))


def estimate(_: JobSpec, facts: JobFacts) -> Timeline:
    """Walk the graph forward and back, once."""
    seen = _Events()
    seen.start(Phase.BETWEEN)
    for weight in facts.weights:
        seen.take(weight.size_bytes, Category.PARAMETERS)
    seen.take(facts.buffer_bytes, Category.PARAMETERS)
    seen.take(facts.batch_bytes, Category.BATCH)
    seen.start(Phase.FORWARD)
    outputs = [seen.take(one.output_bytes, Category.ACTIVATIONS) for one in facts.operators]
    seen.start(Phase.BACKWARD)
    _walk_back(facts, outputs, seen)
    events = tuple(seen.events)
    phases = make_phases(seen.phases, len(events))
    return Timeline(events=events, labels=tuple(seen.labels), phases=phases)


def _walk_back(facts: JobFacts, outputs: list[int], seen: _Events) -> None:
    gradients: dict[int, int] = {}
    done: set[int] = set()
    for place in reversed(range(len(facts.operators))):
        operator = facts.operators[place]
        for needed in (place, *operator.inputs):
            if needed not in gradients:
                size = facts.operators[needed].output_bytes
                gradients[needed] = seen.take(size, Category.TEMPORARY)
        for number in operator.weights:
            if number not in done and facts.weights[number].is_trained:
                done.add(number)
                seen.take(facts.weights[number].size_bytes, Category.GRADIENTS)
        seen.give(gradients[place])
        seen.give(outputs[place])


DNNMEM = Baseline(
    name="dnnmem",
    source="Gao et al., ESEC/FSE 2020",
    published="16.8 % with SGD and 23.6 % with Adam, measured by the authors of xMem",
    limits="no optimizer: neither its states nor its step; the graph is that of PyTorch's own"
    " operators, each of whose outputs is kept; convolutions have no workspaces",
    estimate=estimate,
)
