"""What is different about an optimizer's step on a GPU, as a rule of the orchestration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memgate.blocks import find_live_sizes
from memgate.links import LinkedBlock, LinkedSet
from memgate.optimizers import count_lists, find_largest_of_step
from memgate.plan import DeviceTraits, Plan, plan_within
from memgate.timeline import Category, Phase

_ON_LISTS = ("aten::_foreach_", "aten::_fused_")


def listed_steps(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Let the optimizer work on lists of tensors, as it does on CUDA: on a CPU it is a loop.

    A list's tensors are all there at once, where a loop's go one by one. Each group of parameters
    has lists of its own, one after the other. Optimizers that are not PyTorch's own are loops on
    both.
    """
    del device
    steps = _Steps(linked)
    names = [linked.calls[call].op.name for call in steps.of_call]
    num_lists = count_lists(linked.optimizer, names)
    if num_lists is None or any(name.startswith(_ON_LISTS) for name in names):
        return plan
    kept = [block for block in plan if not steps.gives_back(block.call, block.free_us)]
    gradients = [block for block in plan if block.category is Category.GRADIENTS]
    begins = [linked.calls[positions[0]].op.begin_us for positions in steps.calls]
    added = []
    for number, sizes in enumerate(find_live_sizes(gradients, begins)):
        if linked.stepped:
            sizes = list(linked.stepped)
        elif Counter(sizes) == Counter(linked.trained):
            sizes = list(linked.trained)  # lists are in the order of parameters
        for group in _find_groups(steps.given_back[number], sizes, steps.calls[number][-1]):
            beside = find_largest_of_step(linked.optimizer, group.sizes)
            last = linked.calls[group.last_call]
            added += [
                plan_within(last, group.last_call, size, Category.TEMPORARY)
                for size in (*group.sizes * num_lists, *beside)
            ]
    return kept + added


class _Steps:
    """The steps of a job, each with its calls and what it gives back before it ends."""

    def __init__(self, linked: LinkedSet) -> None:
        by_iteration: dict[int, list[int]] = {}
        for position, call in enumerate(linked.calls):
            if call.phase is Phase.OPTIMIZER:
                by_iteration.setdefault(call.iteration, []).append(position)
        self.calls = list(by_iteration.values())
        self.of_call = {
            call: number for number, positions in enumerate(self.calls) for call in positions
        }
        #: when what follows begins: a loop's last temporaries go after its last call
        self._ends_us = [
            linked.calls[positions[-1] + 1].op.begin_us
            if positions[-1] + 1 < len(linked.calls)
            else float("inf")
            for positions in self.calls
        ]
        self.given_back: list[list[LinkedBlock]] = [[] for _ in self.calls]
        for one in linked.blocks:
            if not one.is_internal and self.gives_back(one.call, one.block.free_us):
                assert one.call is not None
                self.given_back[self.of_call[one.call]].append(one)

    def gives_back(self, call: int | None, free_us: float | None) -> bool:
        """Tell whether a block is one that a step makes and frees."""
        step = self.of_call.get(call) if call is not None else None
        return step is not None and free_us is not None and free_us <= self._ends_us[step]


class _Group(NamedTuple):
    """Parameters that are stepped together."""

    sizes: list[int]
    last_call: int


def _find_groups(made: Sequence[LinkedBlock], sizes: list[int], last_call: int) -> Sequence[_Group]:
    """Divide the parameters of a step into its groups.

    A loop's variable holds what was made for one parameter until the next one's is there. Where
    nothing is held, a loop ended and another one began. Optimizers that hold nothing do not show
    their groups, and all parameters are taken together.
    """
    together = [_Group(sizes, last_call)]
    loops = list(_find_loops(made))
    if not 1 < len(loops) < len(sizes):
        return together
    counts = [Counter(one.block.size_bytes for one in loop) for loop in loops]
    total = sum(counts, Counter())
    rest = list(sizes)
    groups = []
    for loop, count in zip(loops, counts, strict=True):
        # of each size, a loop went over as large a share as it made
        wanted = {size: sizes.count(size) * made // total[size] for size, made in count.items()}
        mine, rest = _divide(rest, Counter(wanted))
        last = loop[-1].call
        assert last is not None
        groups.append(_Group(mine, last))
    return together if rest else groups


def _divide(sizes: Sequence[int], wanted: Counter[int]) -> tuple[list[int], list[int]]:
    """Return the first of each size that are wanted, and the rest."""
    mine: list[int] = []
    rest: list[int] = []
    for size in sizes:
        (mine if wanted[size] > 0 else rest).append(size)
        wanted[size] -= 1
    return mine, rest


def _find_loops(made: Sequence[LinkedBlock]) -> Iterator[list[LinkedBlock]]:
    """Yield blocks, in the order of their allocation, that follow one another without a gap."""
    loop: list[LinkedBlock] = []
    held_until_us = float("-inf")
    for one in made:
        if loop and one.block.alloc_us > held_until_us:
            yield loop
            loop = []
        loop.append(one)
        assert one.block.free_us is not None
        held_until_us = max(held_until_us, one.block.free_us)
    if loop:
        yield loop
