"""A real server with a worker, asked by the client, the command line and the documentation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.client.errors import AnswerError, NotDoneError
from memgate.errors import Fault, InputError
from memgate.gpus import CATALOGUE
from memgate_worker.runtimes.runtime import read_runtimes
from tests.conftest import DATA
from tests.running import running, serving
from tests.valkey import running_valkey

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed,
    reason="runtime torch-2.14 is not built: make runtime",
)

JOB = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 16,
    "optimizer": {"name": "Adam"},
}
TRACE = DATA / "traces" / "tiny-torch-2.14.json.gz"
TIMELINE = DATA / "timelines" / "resnet18-format-1.0.memgate"
SNAPSHOT = DATA / "snapshots" / "adam-torch-2.14.pickle.gz"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a queue, a worker and a service; return where the service is."""
    home = tmp_path_factory.mktemp("server")
    with (
        running_valkey() as url,
        running("memgate_worker", home / "worker.log", redis_url=url, advice_seconds="120"),
        serving(home / "service.log", redis_url=url) as served,
    ):
        yield served.url


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    """A client of that server."""
    with Client(server) as client:
        yield client


def test_a_job_is_estimated_and_its_outcome_told(client: Client) -> None:
    """From the question to how right the answer was."""
    said = client.estimate(JOB, "rtx-3060")
    client.report_outcome(said.id, said.peak_reserved_bytes, is_reserved_only=True)

    assert said.decision == "admit"
    assert client.job(said.id).state == "done"
    assert max(client.timeline(said.id).reserved) == said.peak_reserved_bytes
    assert said.id in {record.id for record in client.jobs(state=client.job(said.id).state)}
    assert client.accuracy().by_model["resnet18"].median_relative_error == 0


def test_a_rejected_job_is_told_which_batch_would_do(client: Client) -> None:
    """The largest, as max-batch finds it; where needs go up and down, it is one nearby."""
    large = JOB | {"batch_size": 20_000}

    said = client.estimate(large, "rtx-4060")
    found = client.max_batch(JOB, "rtx-4060")

    assert said.decision == "reject"
    assert said.reasons[-1].code == "SMALLER_BATCH_FITS"
    assert found.batch_size is not None
    assert said.largest_batch_size == pytest.approx(found.batch_size, rel=0.005)
    assert said.largest_batch_size == found.batch_size or not found.is_monotone
    assert found.estimate is not None
    assert found.estimate.decision == "admit"
    decisions = {tried.batch_size: tried.decision for tried in found.tried}
    assert decisions[(found.batch_size or 0) + 1] != "admit"
    assert (
        len(found.tried) <= 12
    )  # of sizes up to 4000; lines do not tell where needs go up and down


def test_every_gpu_is_answered_for(client: Client) -> None:
    """Those without kernels are unknown, with what to do."""
    fit = client.fit(JOB)

    assert fit.smallest == "a100-40-1g.5gb"
    unknown = {entry.gpu: entry.reason for entry in fit.gpus if entry.decision == "unknown"}
    old = {gpu.name for gpu in CATALOGUE.values() if gpu.compute_capability < (7, 5)}
    assert {"p100-16", "v100-16", "v100-32"} <= old == set(unknown)
    assert unknown["v100-32"].code == "NO_KERNELS"
    with pytest.raises(AnswerError, match="another runtime") as raised:
        client.estimate(JOB, "v100-32")
    assert (raised.value.code, raised.value.status) == ("NO_KERNELS", 422)
    assert raised.value.fault is Fault.JOB


def test_traces_are_uploaded_and_waiting_ends(client: Client) -> None:
    """A trace needs no run; a wait of nothing is over at once, and the job is there."""
    assert client.estimate(TRACE, "t4").engine == "profile"
    with pytest.raises(InputError, match="not in the catalogue"):
        client.estimate(JOB, "gtx")
    with pytest.raises(NotDoneError) as raised:
        client.estimate(JOB | {"batch_size": 17}, "rtx-3060", wait=0)

    assert client.job(raised.value.job, wait=30).work.job is not None
    assert not client.cancel(raised.value.job).state.is_open


def test_snapshots_are_uploaded_and_recognised_by_their_content(
    client: Client, server: str
) -> None:
    """In either part of the form; a device is picked in a snapshot only."""
    request = {"request": json.dumps({"gpu": "t4"})}
    misnamed = {"trace": ("trace.json", SNAPSHOT.read_bytes())}
    answer = httpx2.post(
        f"{server}/estimate",
        data=request,
        files=misnamed,
        headers={"Prefer": "wait=30"},
        timeout=60,
    )
    nothing = httpx2.post(f"{server}/estimate", data=request, files={"other": ("x", b"x")})

    assert client.estimate(SNAPSHOT, "t4", device=0).engine == "snapshot"
    assert (answer.status_code, answer.json()["engine"]) == (200, "snapshot")
    assert (nothing.status_code, "'trace' or 'snapshot'" in nothing.text) == (422, True)
    with pytest.raises(InputError, match="a trace of a CPU has none"):
        client.estimate(TRACE, "t4", device=0)
    with pytest.raises(InputError, match="opcode STACK_GLOBAL"):
        client.estimate(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "t4")


def test_timelines_are_uploaded_and_have_a_page(client: Client, server: str) -> None:
    """Each has an id; a page, a curve, what-if, every GPU; hostile ones are not."""
    said = client.estimate(TIMELINE, "rtx-3060")
    again = client.estimate(TIMELINE.read_bytes(), "rtx-3060")
    conf = "expandable_segments:True"
    other = client.estimate(TIMELINE, "a100-80", allocator=conf)
    page = httpx2.get(f"{server}/ui/jobs/{said.id}").text

    assert (said.decision, said.engine, again.decision) == ("admit", "phantom", "admit")
    assert again.id != said.id, "it was asked twice, and answered once"
    assert max(client.timeline(said.id).reserved) == said.peak_reserved_bytes
    assert "What was recorded" in page
    assert "python train.py --batch-size 16" in page
    assert "torch 2.14.1, no cuDNN" in page
    assert (other.decision, other.reasons[0].code) == ("uncertain", "RECORDED_FOR_ANOTHER_GPU")
    assert client.fit(TIMELINE).smallest == "rtx-3060"
    assert client.fit(TIMELINE, allocator=conf).smallest == "rtx-3060"
    with pytest.raises(InputError, match="the file is cut off") as raised:
        client.estimate(TIMELINE.read_bytes()[:-9], "rtx-3060")
    assert raised.value.code == "BAD_TIMELINE_FILE"


def test_what_is_sent_as_a_timeline_must_be_one(server: str) -> None:
    """Refused before it is stored, as is a newer format; one file at a time."""

    def post(path: str, request: dict[str, str], **files: bytes) -> httpx2.Response:
        return httpx2.post(
            f"{server}{path}", data={"request": json.dumps(request)}, files={**files}
        )

    gpu, file = {"gpu": "t4"}, TIMELINE.read_bytes()
    newer = post("/estimate", gpu, timeline=file[:8] + b"\x02\x00" + file[10:])
    trace = post("/estimate", gpu, timeline=TRACE.read_bytes())
    both = post("/estimate", gpu, timeline=file, trace=TRACE.read_bytes())
    wrong = post("/fit", {}, trace=TRACE.read_bytes())

    assert [answer.status_code for answer in (newer, trace, both, wrong)] == [422] * 4
    assert "format is 2.0: this memgate reads timeline files up to" in newer.json()["detail"]
    assert trace.json()["code"] == "BAD_TIMELINE_FILE"
    assert "one file, 'trace' or 'snapshot' or 'timeline'" in both.json()["detail"]
    assert "one file, 'timeline'" in wrong.json()["detail"]


def test_what_if_of_a_timeline_is_a_replay(client: Client, server: str) -> None:
    """Another GPU, another setting; advice asks about every GPU."""
    said = client.estimate(TIMELINE, "rtx-3060")
    form = {"gpu": "rtx-3060", "allocator": "expandable_segments:True"}
    ours = {"Origin": server}

    asked = httpx2.post(f"{server}/ui/jobs/{said.id}/what-if", data=form, headers=ours).json()
    page = httpx2.get(f"{server}/ui/jobs/{said.id}/what-if").text
    advice = httpx2.post(f"{server}/ui/jobs/{said.id}/advice", headers=ours).json()

    record = client.job(asked["job"], wait=30)
    assert record.estimate is not None
    assert record.estimate.peak_reserved_bytes < said.peak_reserved_bytes
    assert "python train.py --batch-size 16" in page
    assert "Smallest GPU" in advice["html"]["advice"]


@pytest.mark.parametrize(
    ("command", "want_status"),
    [
        (["estimate", str(TIMELINE), "--gpu", "rtx-3060"], 0),
        (["fit", str(TIMELINE)], 0),
        (["estimate", "JOB", "--gpu", "rtx-3060"], 0),
        (["estimate", "LARGE", "--gpu", "rtx-4060"], 3),
        (["estimate", "JOB", "--gpu", "gtx"], 2),
        (["analyze", str(TRACE), "--gpu", "rtx-3060"], 0),
        (["analyze", str(SNAPSHOT), "--gpu", "rtx-3060", "--device", "0"], 0),
        (["max-batch", "JOB", "--gpu", "rtx-4060"], 0),
        (["fit", "JOB"], 0),
    ],
    ids=[
        "timeline",
        "timeline-fit",
        "admit",
        "reject",
        "no-gpu",
        "trace",
        "snapshot",
        "max-batch",
        "fit",
    ],
)
def test_the_command_line_says_the_same_with_a_server(
    run: Any, server: str, tmp_path: Path, command: list[str], want_status: int
) -> None:
    """The exit status, and of what is printed all but times, advice and ids."""
    (tmp_path / "JOB").write_text(json.dumps(JOB))
    (tmp_path / "LARGE").write_text(json.dumps(JOB | {"batch_size": 20_000}))
    here = [str(tmp_path / word) if word in ("JOB", "LARGE") else word for word in command]

    alone = run(*here, "--json")
    asked = run(*here, "--json", "--server", server)

    assert (alone.status, asked.status) == (want_status, want_status)
    if want_status == 2:
        assert asked.err == alone.err
        return
    said, other = json.loads(asked.out), json.loads(alone.out)
    of_the_server = ("id", "page", "largest_batch_size", "reasons", "explanation")
    for name in ("timings_ms", "layers", "diagnostics", *of_the_server):
        said.pop(name, None)
        other.pop(name, None)
    assert said == other


def test_what_the_documentation_shows_runs(server: str, tmp_path: Path) -> None:
    """The Python of docs/client.md as one script, and its commands; the README's, too."""
    text = (ROOT / "docs/client.md").read_text()
    readme = (ROOT / "README.md").read_text().replace("http://127.0.0.1:8080", server)
    blocks = re.findall(r"```python\n(.*?)```", f"{text}{readme}", re.DOTALL)
    script = tmp_path / "client.py"
    script.write_text("\n".join(blocks))
    environment = os.environ | {"MEMGATE_URL": server, "PYTHONPATH": str(ROOT)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )

    ran = run(sys.executable, str(script))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("admit ")
    assert "NO_KERNELS 422 job the PyTorch of runtime" in ran.stdout
    assert ran.stderr == "memgate: no outcome was reported: the script used no GPU\n"
    (commands,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    for line in commands.splitlines():
        words = shlex.split(line.removeprefix("$ ").replace("http://127.0.0.1:8080", server))
        ran = run(str(Path(sys.executable).parent / words[0]), *words[1:])
        assert ran.returncode == 0, ran.stderr
