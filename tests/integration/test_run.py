"""``memgate run``: whatever starts a job, in its own environment, on a GPU that is not there."""

from __future__ import annotations

import json
import os
import stat
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import JobFailedError
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.limits import RunLimits
from tests.integration.recording import (
    RUNTIME,
    TRAIN,
    doubts,
    needs_runtime,
    record_fixture,
)

pytestmark = needs_runtime

record = record_fixture(TRAIN)


def allocated(run: Any) -> int:
    """Return the largest sum of what was allocated at once."""
    live: dict[int, int] = {}
    most = now = 0
    for event in run.traced.timeline.events:
        if hasattr(event, "size_bytes"):
            live[event.block_id] = event.size_bytes
            now += event.size_bytes
        elif type(event).__name__ == "Free":
            now -= live.pop(event.block_id)
        most = max(most, now)
    return most


def executable(path: Path, text: str) -> Path:
    """Write a program."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    "command",
    [
        "{python} train.py",
        "{python} -m train",
        "{bin}/torchrun --standalone --nproc-per-node 1 train.py",
        "{bin}/python -m accelerate.commands.launch --num_processes 1 train.py",
        "./start.sh",
        "env -u PATH {python} train.py",
    ],
    ids=["script", "module", "torchrun", "accelerate", "shell script", "env"],
)
def test_whatever_starts_a_job_gets_the_same_answer(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The script itself, launchers, and a shell script that fails after it."""
    names = {"python": RUNTIME.python, "bin": RUNTIME.python.parent}
    # Many libraries look whether there is a torch before they import it.
    looks = "from importlib.util import find_spec\nassert find_spec('torch')\n"
    (tmp_path / "train.py").write_text(looks + TRAIN + "for _ in range(5): step()\n")
    start = "#!/bin/sh\nset -e\nexport CUDA_VISIBLE_DEVICES=3\n{python} train.py\nexit 9\n"
    executable(tmp_path / "start.sh", start.format(**names))
    monkeypatch.chdir(tmp_path)

    ran = run("run", "--gpu", "t4", "--json", "--", *command.format(**names).split())

    answer = json.loads(ran.out)
    assert (ran.status, answer["decision"], answer["engine"]) == (0, "admit", "phantom")
    assert answer["breakdown"]["parameters"] == 256 * 257 * 4
    assert answer["versions"]["torch"].startswith("2.14")


def test_without_a_gpu_there_is_a_need_and_no_verdict(run: Any, tmp_path: Path) -> None:
    """It says which GPU it was recorded for; nobody may take that for an admission."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN + "for _ in range(5): step()\n")

    ran = run("run", "--", RUNTIME.python, path)

    assert ran.status == 2
    assert "recorded for a100-80; no GPU was named, so there is no verdict" in ran.out


def test_a_command_that_is_not_there_is_named(run: Any) -> None:
    """As the shell would."""
    ran = run("run", "--gpu", "t4", "--", "no-such-program", "--x")

    assert ran.status == 2
    assert "'no-such-program': there is no such program" in ran.err


def test_the_environment_of_a_job_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    """A person's own ``sitecustomize`` runs, and the module search path is what it would be."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.was_here = True\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    check = f"""
assert was_here and sys.modules["sitecustomize"].__file__.startswith({str(site)!r})
assert sys.path[1] == {str(site)!r} and not [one for one in sys.path if "memgate" in one], sys.path
assert os.environ["WANDB_MODE"] == "offline"
for _ in range(5): step()
"""

    assert record(check).num_steps == 5


def test_an_evaluation_that_takes_more_counts(record: Any) -> None:
    """Ten steps, then an evaluation with batches a thousand times as large, again and again."""
    run = record(
        "while True:\n    for _ in range(10): step()\n    for _ in range(3): evaluate(8000)"
    )

    assert (run.why, doubts(run)) == ("evaluation", [])
    stages = [stage for stage, _ in groupby(mark.phase for mark in run.traced.marks)]
    assert stages[:3] == ["load", "train", "evaluate"]
    assert [mark.step for mark in run.traced.marks if mark.phase == "train"][:10] == list(range(10))
    assert allocated(run) > 2 * 8000 * 256 * 4


def test_an_evaluation_that_does_not_end_is_enough_when_it_takes_no_more(record: Any) -> None:
    """So does one without ``model.eval()`` and ``no_grad``."""
    run = record("""
for _ in range(5): step()
model.train()
while True: model(torch.zeros(2000, 256, device="cuda"))
""")

    assert run.why == "evaluation"
    assert allocated(run) > 2000 * 256 * 4


def test_what_was_not_reached_is_told(record: Any) -> None:
    """A job that goes on training is stopped when its time is over."""
    run = record("while True: step()", watch=Watch(seconds=0.0))

    assert (run.why, doubts(run)) == ("time", ["EVALUATION_NOT_REACHED"])


def test_batches_that_vary_and_memory_that_grows_are_told(record: Any) -> None:
    """Both have a reason of their own."""
    vary = record(
        """
model = torch.nn.Embedding(100, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for i in range(1, 99):
    model(torch.zeros(4, 8 + i % 5, device="cuda", dtype=torch.long)).sum().backward()
    optimizer.step()
""",
        num_steps=12,
    )
    grow = record(
        "kept = []\nwhile True: step(); kept.append(torch.zeros(1 << 20).cuda())", num_steps=12
    )

    assert "INPUT_SHAPES_VARY" in doubts(vary)
    assert "STILL_GROWING" in doubts(grow)


def test_training_by_hand_is_training(record: Any) -> None:
    """Without an optimizer each backward pass is a step."""
    run = record("""
for _ in range(6):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters(): parameter -= 0.1 * parameter.grad
    model.zero_grad()
""")

    assert (run.num_steps, doubts(run)) == (6, [])


def test_sparse_gradients_are_gradients(record: Any) -> None:
    """They have no storage of their own, and their values have."""
    run = record("""
model = torch.nn.EmbeddingBag(100, 256, sparse=True).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(5):
    model(torch.ones(4, 8, device="cuda", dtype=torch.long)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")

    assert run.num_steps == 5
    assert "gradients" in {label.category for label in run.traced.timeline.labels}


def test_peaks_that_a_job_resets_are_still_checked(record: Any) -> None:
    """Many loops reset them each epoch."""
    run = record("for _ in range(6): step(999); torch.cuda.reset_peak_memory_stats(); step()")

    assert run.num_steps == 12


def test_weights_are_not_drawn_forever(record: Any) -> None:
    """PyTorch draws those again that are too large, and on the phantom all of them stay so."""
    run = record(
        "torch.nn.init.trunc_normal_(model.weight, std=0.02)\nfor _ in range(5): step()",
        limits=RunLimits(seconds=120),
    )

    assert run.num_steps == 5


def test_a_process_of_its_own_that_trains_is_the_job(record: Any) -> None:
    """Started by ``multiprocessing``, which ends its processes without the usual end."""
    run = record("""
def work(rank): [step() for _ in range(5)]
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(work, nprocs=1)
""")

    assert run.num_steps == 5


def test_a_job_that_fails_after_enough_steps_is_answered_with_a_doubt(record: Any) -> None:
    """What was seen was seen."""
    run = record("for _ in range(6): step()\nraise ValueError('later')")

    assert doubts(run) == ["FAILED_LATER"]


def test_a_job_that_gives_up_was_not_seen_whole(record: Any) -> None:
    """A guard of its own, say; after a few steps it is not answered for at all."""
    late = record("for _ in range(6): step()\nsys.exit(3)")
    with pytest.raises(JobFailedError, match="exit status 3"):
        record("step()\nsys.exit(3)")

    assert doubts(late) == ["FAILED_LATER"]


def test_calls_that_were_refused_and_survived_are_told(record: Any) -> None:
    """On a GPU the job would have gone another way."""
    run = record("""
try: torch.sparse.mm(torch.eye(4).to_sparse_csr().cuda(), torch.zeros(4, 4, device="cuda"))
except RuntimeError: pass
for _ in range(6): step()
""")

    assert doubts(run) == ["CALLS_REFUSED"]


def test_calls_between_steps_are_no_evaluation_if_training_begins_with_them(record: Any) -> None:
    """As reinforcement learning does: many calls, then a step, from the beginning."""
    run = record(
        """
while True:
    for _ in range(40): model(torch.zeros(8, 256, device="cuda"))
    step()
""",
        watch=Watch(seconds=0.0),
    )

    assert (run.why, doubts(run)) == ("time", ["EVALUATION_NOT_REACHED"])


def test_a_process_that_uses_a_gpu_beside_the_job_is_told(record: Any) -> None:
    """It does not train, and may take more."""
    run = record("""
import subprocess
subprocess.run([sys.executable, "-c", "import torch; torch.zeros(9, device='cuda')"], check=True)
for _ in range(5): step()
""")

    assert (run.num_steps, doubts(run)) == (5, ["SEVERAL_PROCESSES"])


def test_a_server_needs_a_gpu_to_answer_for(run: Any) -> None:
    """Nothing is run, and nothing is uploaded."""
    ran = run("run", "--server", "http://127.0.0.1:1", "--", RUNTIME.python, "train.py")

    assert ran.status == 2
    assert "--server gives a verdict, which needs a GPU" in ran.err


def test_a_job_is_told_when_the_time_is_up(record: Any) -> None:
    """It has made steps and waits for something: what it recorded counts."""
    run = record(
        "for _ in range(6): step()\nimport time; time.sleep(999)",
        watch=Watch(until="end"),
        limits=RunLimits(seconds=30.0),
    )

    assert (run.why, run.num_steps) == ("time", 6)
    assert "EVALUATION_NOT_REACHED" in doubts(run)


ROTATES = """
import shutil
from pathlib import Path
for i in range(6):
    step()
    here = Path("out") / f"checkpoint-{100 + i}"
    here.mkdir(parents=True)
    torch.save(model.state_dict(), here / "model.pt")
    kept = sorted(Path("out").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    for old in kept[:-2]: shutil.rmtree(old)
    torch.save(i, "last.pt")
assert [path.name for path in kept[-2:]] == ["checkpoint-104", "checkpoint-105"]
assert torch.load("last.pt") == 5
"""


def test_no_file_of_a_person_is_changed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job rotates checkpoints in a folder of real ones: every byte and name stays."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN + ROTATES)
    (work / "last.pt").write_bytes(b"mine")
    for step in (7, 8, 9):
        (work / "out" / f"checkpoint-{step}").mkdir(parents=True)
        (work / "out" / f"checkpoint-{step}" / "model.pt").write_bytes(bytes([step]) * 9999)

    def look() -> dict[str, tuple[bytes, int]]:
        files = (path for path in work.rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = look()
    monkeypatch.chdir(work)

    ran = run(
        *("run", "--gpu", "t4", "--json", "--keep", os.path.relpath(tmp_path / "kept", work)),
        *("--", RUNTIME.python, "train.py"),
    )

    assert ran.status == 0, ran.err
    assert look() == before
    assert (tmp_path / "kept" / "files").is_dir()


def test_a_process_that_ignores_its_environment_is_stopped(run: Any, tmp_path: Path) -> None:
    """Nothing is known about what it would do; that is not the job's fault."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN + "for _ in range(5): step()\n")

    ran = run("run", "--gpu", "t4", "--", RUNTIME.python, "-I", path)

    assert ran.status == 1
    assert "this process loads torch and cannot be watched" in ran.err
