"""A command with several processes under ``memgate run``: which of them is answered for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.gpus import find_gpu
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.limits import RunLimits
from memgate_worker.recorder import waiting
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.recorder.reading import CommandRun
from tests.integration.recording import RUNTIME, doubts, needs_runtime

pytestmark = needs_runtime

#: steps for ever, with evaluations between them
TRAIN = """
import sys, torch
size = int(sys.argv[1])
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
while True:
    for _ in range(4):
        model(torch.zeros(size, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model.eval()
        for _ in range(4): model(torch.zeros(size, 256, device="cuda"))
        model.train()
"""

CHECK = "import torch; assert torch.cuda.is_available(); torch.zeros(1, device='cuda')"


@pytest.fixture
def sh(tmp_path: Path) -> Any:
    """Write a shell script, in which ``train SIZE`` and ``check`` are commands, and record it."""

    def record(text: str, **options: Any) -> CommandRun:
        (tmp_path / "train.py").write_text(TRAIN)
        begin = (
            f"train() {{ {RUNTIME.python} train.py $1; }}\n"
            f'check() {{ {RUNTIME.python} -c "{CHECK}"; }}\n'
        )
        (tmp_path / "run.sh").write_text(begin + text)
        question = CommandQuestion(
            command=("bash", "run.sh"),
            directory=tmp_path,
            environment={"PATH": "/usr/bin:/bin"},
            gpu=find_gpu("a100-40"),
            runtime=RUNTIME.name,
            **options,
        )
        return record_command(question)

    return record


def notes(run: CommandRun) -> list[str]:
    """Return the codes of what is to be known."""
    return [note.code for note in run.traced.notes]


def largest(run: CommandRun) -> int:
    """Return the samples of the largest batch."""
    return max(batch.shape[0] for batch in run.batches)


def test_a_process_that_has_ended_does_not_share_the_gpu(sh: Any) -> None:
    """A check of the GPU before the training; and nothing waits when the script has ended."""
    run = sh("set -e\ncheck\ntrain 8\necho done\n")

    assert (doubts(run), run.why) == ([], "evaluation")
    assert notes(run) == ["OTHER_PROCESSES", "LATER_NOT_SEEN"]


def test_the_largest_job_of_a_script_is_answered_for(sh: Any) -> None:
    """Each is ended when enough was seen of it, and the script goes on."""
    run = sh("set -e\ntrain 8\ntrain 4000\ntrain 16\n")

    assert (doubts(run), largest(run)) == ([], 4000)
    (note,) = [note for note in run.traced.notes if note.code == "OTHER_PROCESSES"]
    assert note.message.startswith("2 other processes")


def test_what_takes_memory_without_training_counts(sh: Any) -> None:
    """It was seen to its end, and takes more than the training."""
    more = CHECK.replace("zeros(1", "zeros(1 << 30")
    run = sh(f'{RUNTIME.python} -c "{more}"\ntrain 8\n')

    assert (doubts(run), run.num_steps) == ([], 0)
    assert sum(event.size_bytes for event in run.traced.timeline.events[:1]) == 4 << 30


def test_jobs_at_the_same_time_are_doubted(sh: Any) -> None:
    """Whichever of them is ended first."""
    assert doubts(sh("train 8 &\ntrain 16 &\nwait\n")) == ["SEVERAL_PROCESSES"]


def test_a_launcher_that_asks_what_the_gpu_can_do_takes_nothing(sh: Any) -> None:
    """It reads the arguments of the job, and waits for it."""
    asks = "import torch; assert torch.cuda.is_bf16_supported() and torch.cuda.is_initialized()"
    text = f"{asks}; import subprocess; subprocess.run(['bash', 'one.sh'])"
    run = sh(f"echo '{RUNTIME.python} train.py 8' > one.sh\n{RUNTIME.python} -c \"{text}\"\n")

    assert (doubts(run), notes(run)) == ([], ["LATER_NOT_SEEN"])


@pytest.mark.parametrize(
    ("script", "want"),
    [
        ("set -e\ntrain 8\ncat no-such-file\ntrain 16\n", "the command ended with exit status 1"),
        (f"train 8\n{RUNTIME.python} -c 'open(\"model.pt\")'\n", "FileNotFoundError"),
        ("train 8\nsleep 4243\n", "goes on with sleep 4243, and it has used no GPU"),
    ],
    ids=["a command between", "the next command", "no end"],
)
def test_later_commands_that_were_not_seen_are_doubted(
    sh: Any, monkeypatch: pytest.MonkeyPatch, script: str, want: str
) -> None:
    """What an ended job would have made is not there for them, or they take too long."""
    if "sleep" in script:
        monkeypatch.setattr(waiting, "_LATER_SECONDS", 1.0)

    run = sh(script)

    assert doubts(run) == ["COMMANDS_NOT_SEEN"]
    assert want in run.traced.doubts[0].message


@pytest.mark.slow  # a minute of silence is what it waits for
def test_the_time_of_a_command_is_the_time_of_all_of_it(sh: Any) -> None:
    """What it would go on with is named."""
    run = sh("train 8\nsleep 4244\n", watch=Watch(until="end"), limits=RunLimits(seconds=20.0))

    assert "COMMANDS_NOT_SEEN" in doubts(run)
    assert "goes on with sleep 4244, and the time is up" in run.traced.doubts[-1].message


@pytest.mark.parametrize(
    ("seconds", "want"), [(3, []), (4245, ["COMMANDS_NOT_SEEN"])], ids=["a pause", "no end"]
)
def test_a_launcher_that_pauses_is_waited_for(
    sh: Any, monkeypatch: pytest.MonkeyPatch, seconds: int, want: list[str]
) -> None:
    """What it starts after that counts; if that takes too long, it is not known."""
    monkeypatch.setattr(waiting, "_LATER_SECONDS", 30.0 if seconds == 3 else 1.0)
    one, other = "subprocess.run(['bash', 'one.sh'])", "subprocess.run(['bash', 'other.sh'])"
    text = f"import subprocess, time; {one}; time.sleep({seconds}); {other}"
    run = sh(
        f"echo '{RUNTIME.python} train.py 8' > one.sh\n"
        f"echo '{RUNTIME.python} train.py 4000' > other.sh\n"
        f'exec {RUNTIME.python} -c "{text}"\n'
    )

    assert (doubts(run), largest(run)) == (want, 8 if want else 4000)


def test_what_a_script_leaves_in_the_background_is_waited_for(sh: Any) -> None:
    """The script has ended long before."""
    run = sh("train 8 &\n")

    assert (doubts(run), run.why) == ([], "evaluation")


def test_a_job_in_the_background_shares_the_gpu_with_later_ones(sh: Any) -> None:
    """It was ended early, before the next one was started, and would still be there."""
    run = sh("train 8 &\nwhile kill -0 $! 2> /dev/null; do sleep 0.1; done\ntrain 16\n")

    assert doubts(run) == ["SEVERAL_PROCESSES"]


def test_a_program_that_becomes_another_one_counts(sh: Any) -> None:
    """It takes more than the one that trains in its place."""
    become = f"os.execv('{RUNTIME.python}', ['{RUNTIME.python}', 'train.py', '8'])"
    text = f"import os, torch; x = torch.zeros(1 << 30, device='cuda'); {become}"
    run = sh(f'{RUNTIME.python} -c "{text}"\n')

    assert (doubts(run), run.num_steps) == ([], 0)
    assert "OTHER_PROCESSES" in notes(run)


def test_nvidia_smi_in_a_script_answers_for_the_gpu(sh: Any) -> None:
    """On a machine without it, the script would end here."""
    run = sh("set -e\nnvidia-smi > /dev/null\ntest $(nvidia-smi -L | wc -l) = 1\ntrain 8\n")

    assert (doubts(run), run.why) == ([], "evaluation")
