"""Training jobs that write memory snapshots, each in a process of its own: one import of torch.

Arguments: a folder, and the names of jobs. Beside each snapshot goes what torch counted.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

memory = torch.cuda.memory

#: frames of C++ take long to be named: only some jobs have them, as is the default
record_all = memory._record_memory_history
record = partial(record_all, stacks="python")
set_allocator = memory._set_allocator_settings

WIDTH = 1000


def make_steps(model, optimizer, count, inputs=(64, WIDTH)):
    """Train for some steps."""
    for _ in range(count):
        batch = torch.zeros(*inputs, device="cuda")
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(count, *, model=None, make_optimizer=torch.optim.Adam, inputs=(64, WIDTH)):
    """Make a model and an optimizer, and train for some steps."""
    if model is None:
        layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model = nn.Sequential(*layers)
    model = model.cuda()
    optimizer = make_optimizer(model.parameters(), lr=0.1)
    make_steps(model, optimizer, count, inputs)
    return model, optimizer


def adam():
    """Watched from the start."""
    record_all()
    return train(3)


def sgd():
    """Without optimizer state."""
    record()
    return train(4, make_optimizer=torch.optim.SGD)


def convolutions():
    """With cuDNN."""
    record_all()
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3))
    return train(3, model=model, inputs=(8, 3, 64, 64))


def transformer():
    """With attention."""
    record()
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    return train(3, model=model, make_optimizer=torch.optim.AdamW, inputs=(8, 32, 128))


def empty_cache():
    """Memory is given back between steps."""
    record()
    kept = train(3)
    torch.cuda.empty_cache()
    make_steps(*kept, 2)
    return kept


def streams():
    """Blocks that other streams use."""
    record()
    kept = train(2)
    other = torch.cuda.Stream()
    for _ in range(3):
        make_steps(*kept, 1)
        with torch.cuda.stream(other):
            there = torch.zeros(2_000_000, device="cuda")
        there.record_stream(torch.cuda.current_stream())
        here = torch.zeros(3_000_000, device="cuda")
        here.record_stream(other)
        del here, there
        torch.zeros(7_000_000, device="cuda")
    return kept


def private_pool():
    """Memory of a pool of its own."""
    record_all()
    pool = torch.cuda.MemPool()
    kept = train(3)
    with torch.cuda.use_mem_pool(pool):
        large, small = torch.zeros(5_000_000, device="cuda"), torch.zeros(100, device="cuda")
    del large
    torch.cuda.empty_cache()
    make_steps(*kept, 2)
    return kept, pool, small


def expandable():
    """Pages instead of segments."""
    set_allocator("expandable_segments:True")
    return empty_cache()


def settings():
    """Settings that change sizes."""
    set_allocator("max_split_size_mb:32,roundup_power2_divisions:4")
    record()
    return train(4, inputs=(700, WIDTH))


def pressure():
    """The cache is given back since the device is full."""
    record()
    kept = train(2)
    many = [torch.zeros(2**28, device="cuda") for _ in range(4)]
    del many
    torch.zeros(3 * 2**29, device="cuda")
    make_steps(*kept, 3)
    return kept


def late():
    """Watched from the third step on."""
    kept = train(2, inputs=(700, WIDTH))
    torch.cuda.reset_peak_memory_stats()
    record()
    make_steps(*kept, 3, inputs=(700, WIDTH))
    return kept


def late_expandable():
    """The same with pages."""
    set_allocator("expandable_segments:True")
    return late()


def late_without_stacks():
    """The same without stacks."""
    kept = train(2)
    torch.cuda.reset_peak_memory_stats()
    record(context=None)
    make_steps(*kept, 3)
    torch.cuda.empty_cache()
    make_steps(*kept, 1)
    return kept


def wrapped():
    """A history that is too short."""
    record(max_entries=150)
    return train(6)


def wrapped_expandable():
    """The same with pages."""
    set_allocator("expandable_segments:True")
    return wrapped()


def one_step():
    """Nothing is repeated."""
    record()
    return train(1)


def no_history():
    """Not watched at all."""
    return train(3)


def out_of_memory():
    """Ends for lack of memory."""
    record()
    kept = train(2)
    held = []
    try:
        while True:
            held.append(torch.zeros(2**28, device="cuda"))
    except torch.OutOfMemoryError:
        return kept, held


def survived():
    """Goes on after a request that failed."""
    record()
    kept = train(2)
    try:
        torch.zeros(2**33, device="cuda")
    except torch.OutOfMemoryError:
        make_steps(*kept, 3)
    return kept


def run(job: Callable[[], object], folder: Path) -> None:
    """Run a job in a child, and leave what it wrote."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0, job.__name__
        return
    kept = job()
    stats = torch.cuda.memory_stats()
    memory._dump_snapshot(str(folder / f"{job.__name__}.pickle"))
    (folder / f"{job.__name__}.json").write_text(json.dumps(stats))
    del kept
    os._exit(0)


for name in sys.argv[2:]:
    run(globals()[name], Path(sys.argv[1]))
