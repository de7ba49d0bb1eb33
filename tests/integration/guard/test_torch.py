"""What training libraries do with files: torch, safetensors, numpy, transformers, data loaders."""

from __future__ import annotations

import textwrap

import pytest

from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.guard.guarding import Place

PROGRAM = textwrap.dedent(
    """
    import os, shutil
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    # checkpoints, over some that are there
    state = {"weight": torch.arange(1000.0)}
    torch.save(state, "out/checkpoint-100/model.bin")
    assert torch.equal(torch.load("out/checkpoint-100/model.bin")["weight"], state["weight"])
    assert torch.equal(
        torch.load("out/checkpoint-100/model.bin", mmap=True)["weight"], state["weight"])
    save_file(state, "out/checkpoint-200/model.bin")
    assert torch.equal(load_file("out/checkpoint-200/model.bin")["weight"], state["weight"])

    # memory maps
    array = np.memmap("data/a.bin", dtype=np.uint8, mode="r+")
    array[:3] = 7
    array.flush()
    assert np.fromfile("data/a.bin", dtype=np.uint8)[:4].tolist() == [7, 7, 7, 3]
    storage = torch.from_file("notes.txt", shared=True, size=4, dtype=torch.uint8)
    storage.fill_(65)
    assert open("notes.txt").read() == "AAAAtwo\\nthree\\n"

    # workers, with both ways to share tensors
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.full((1000,), index)
    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)
        assert [batch[0, 0].item() for batch in loader] == [0, 2, 4, 6], strategy

    # a trainer's rotation, and the end of an output directory
    for step in (400, 500):
        os.makedirs(f"out/tmp-{step}")
        torch.save(state, f"out/tmp-{step}/optimizer.pt")
        os.replace(f"out/tmp-{step}", f"out/checkpoint-{step}")
        shutil.rmtree(f"out/checkpoint-{step - 300}")
    assert sorted(os.listdir("out")) == ["checkpoint-300", "checkpoint-400", "checkpoint-500"]
    shutil.rmtree("out")
    os.makedirs("out")
    print("done", sorted(os.listdir("out")))
    """
)


@pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed,
    reason="runtime torch-2.14 is not built: make runtime",
)
def test_training_libraries_change_private_copies(place: Place) -> None:
    """Checkpoints, memory maps and workers do what they do; nothing of it reaches the files."""
    if place.way.as_other_user:
        pytest.skip("a runtime belongs to the user who installed it")
    runtime = read_runtimes()["torch-2.14"]
    libraries = {"LD_LIBRARY_PATH": str(runtime.stubs), "CUDA_VISIBLE_DEVICES": ""}
    result = place.run([str(runtime.python), "-c", PROGRAM], environment=libraries)
    assert (result.returncode, result.stdout) == (0, "done []\n"), result.stderr
