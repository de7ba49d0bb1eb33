"""What ranks send each other, where the others are not there: delivered, or doubted."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import UnsupportedJobError
from tests.integration.rank_scripts import rank_fixture
from tests.integration.recording import doubts, needs_runtime

pytestmark = needs_runtime

record = rank_fixture()


def test_small_collectives_deliver_what_all_ranks_would_have_sent(record: Any) -> None:
    """Numbers, objects, and the sizes that libraries exchange are as if all sent the same."""
    run = record(
        """
def same(got, want):
    assert got == want, (got, want)
large = torch.tensor([2**63 + 5], dtype=torch.uint64)
same([large.item(), int(large.cuda())], [2**63 + 5] * 2)
numbers = torch.tensor([3, 4]).cuda()
dist.all_reduce(numbers)
same(numbers.tolist(), [3 * size, 4 * size])
for kind in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8):
    for name, want in (("MAX", 3), ("MIN", 3), ("SUM", 24)):
        number = torch.tensor([3], dtype=kind).cuda()
        dist.all_reduce(number, op=getattr(dist.ReduceOp, name))
        same(number.item(), want)
mean = torch.tensor([5.0, 7.0]).cuda()
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
same(mean.tolist(), [5, 7])
parts = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(size)]
dist.all_gather(parts, torch.tensor([9], device="cuda"))
same([part.item() for part in parts], [9] * size)
flat = torch.zeros(2 * size, device="cuda")
dist.all_gather_into_tensor(flat, torch.tensor([1.0, 2.0]).cuda())
same(flat.tolist(), [1, 2] * size)
own = torch.zeros(1, device="cuda")
dist.reduce_scatter_tensor(own, torch.arange(size, dtype=torch.float32).cuda())
same(own.item(), rank * size)
taken = torch.zeros(size, dtype=torch.long, device="cuda")
dist.all_to_all_single(taken, torch.arange(size).cuda())
same(taken.tolist(), [rank] * size)
sent = torch.tensor([6.0]).cuda()
received = torch.zeros(1, device="cuda")
for work in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, sent, (rank + 1) % size),
    dist.P2POp(dist.irecv, received, (rank - 1) % size),
]):
    work.wait()
same(received.item(), 6)
dist.recv(received, (rank - 1) % size)
assert torch.isfinite(received).all()
objects = [None] * size
dist.all_gather_object(objects, {"rank": 5})
same(objects, [{"rank": 5}] * size)
listed = ["text", 3]
dist.broadcast_object_list(listed, src=0)
same(listed, ["text", 3])
dist.barrier()
train(make().cuda())
dist.destroy_process_group()
"""
    )

    assert run.num_steps == 3
    assert {"SIZES_FROM_OTHER_RANKS", "OBJECTS_FROM_OTHER_RANKS"} <= {*doubts(run)}


@pytest.mark.parametrize(
    "receive",
    [
        "dist.broadcast(number, 5)",
        *(
            pytest.param(call, marks=pytest.mark.slow)
            for call in (
                "dist.scatter(number, None, 5)",
                "dist.recv(number, 5)",
                "dist.batch_isend_irecv([dist.P2POp(dist.irecv, number, 5)])",
                "number = number.cpu(); dist.broadcast(number, 5, dist.new_group(backend='gloo'))",
            )
        ),
    ],
)
def test_integers_of_a_rank_that_was_not_run_are_doubted(record: Any, receive: str) -> None:
    """The job takes as much memory as another rank says."""
    run = record(f"""
number = torch.zeros(1, dtype=torch.long, device="cuda")
{receive}
kept = torch.empty(1024 + number.item(), device="cuda")
train(make().cuda())
""")

    assert "SIZES_FROM_OTHER_RANKS" in doubts(run)


def test_what_all_ranks_gather_and_what_nobody_reads_is_not_doubted(record: Any) -> None:
    """Integers that stay on the GPU do no harm, and a checkpoint is loaded as it was saved."""
    run = record("""
import tempfile
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
number = torch.zeros(1, dtype=torch.long, device="cuda")
dist.broadcast(number, 5)
gathered = [None] * size
dist.all_gather_object(gathered, {"rank": rank})
dist.gather_object({"rank": rank}, gathered if rank == 0 else None, 0)
model = make().cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
with tempfile.TemporaryDirectory() as folder:
    dcp.save(states, checkpoint_id=folder)
    dcp.load(states, checkpoint_id=folder)
set_state_dict(
    model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
)
step()
step()
""")

    assert run.num_steps == 3
    assert not {"SIZES_FROM_OTHER_RANKS", "OBJECTS_FROM_OTHER_RANKS"} & {*doubts(run)}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["dist", "torch.distributed._functional_collectives"])
def test_parts_whose_sizes_ranks_tell_each_other_are_doubted(record: Any, library: str) -> None:
    """Experts get as many tokens as other ranks send; all-gathered counts tell nothing of that."""
    run = record(
        f"""
import torch.distributed._functional_collectives
counts = torch.full((size,), 4, device="cuda")
every = torch.empty(size * size, dtype=counts.dtype, device="cuda")
dist.all_gather_into_tensor(every, counts)
taken = every.view(size, size)[:, rank].tolist()
tokens = torch.zeros(4 * size, 256, device="cuda")
if "{library}" == "dist":
    got = torch.empty(sum(taken), 256, device="cuda")
    dist.all_to_all_single(got, tokens, taken, counts.tolist())
else:
    got = {library}.all_to_all_single(tokens, taken, counts.tolist(), dist.group.WORLD)
train(make().cuda())
"""
    )

    assert "SIZES_FROM_OTHER_RANKS" in doubts(run)


#: a layer of experts, shared out over ranks; COUNT says how tokens are counted
EXPERTS = """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, taken, given):
        ctx.sizes = given, taken
        got = x.new_empty(sum(taken), x.shape[1])
        dist.all_to_all_single(got, x, taken, given)
        return got
    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient.contiguous(), *ctx.sizes), None, None
router, expert = nn.Linear(256, size).cuda(), Block().cuda()
optimizer = torch.optim.AdamW([*router.parameters(), *expert.parameters()])
for _ in range(3):
    x = torch.randn(100, 256, device="cuda")
    shares, chosen = router(x).softmax(-1).topk(2)
    chosen = chosen.flatten()
    order = chosen.argsort()
    counts = COUNT
    taken = torch.empty_like(counts)
    dist.all_to_all_single(taken, counts)
    given, taken = counts.tolist(), taken.tolist()
    got = Exchange.apply(x.repeat_interleave(2, 0)[order], taken, given)
    y = Exchange.apply(expert(got), given, taken)
    y = torch.zeros_like(y).index_copy(0, order, y)
    (y.view(100, 2, 256) * shares[..., None]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "count",
    [
        "torch.bincount(chosen, minlength=size)",
        pytest.param(
            "torch.histc(chosen.float(), 2 * size, 0, 2 * size).int().view(size, 2).sum(1)",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bincount", "histc"],
)
def test_experts_get_their_share_of_tokens(record: Any, count: str) -> None:
    """What a router counts adds up to all tokens, and how many come from others is doubted."""
    run = record(EXPERTS.replace("COUNT", count))

    assert run.num_steps == 3
    assert "SIZES_FROM_OTHER_RANKS" in doubts(run)


def test_counts_that_do_not_add_up_are_not_blamed_on_the_job(record: Any) -> None:
    """A sum over made-up choices is none that tokens can be sent by."""
    with pytest.raises(UnsupportedJobError, match="made up") as refused:
        record(EXPERTS.replace("COUNT", "nn.functional.one_hot(chosen, size).sum(0)"))

    assert "torch.bincount" in refused.value.message
