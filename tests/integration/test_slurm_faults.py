"""Memgate is down, slow, hostile or broken: what a real Slurm does then, and how long it waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.integration.slurm_lab import ROOT, Ran, SlurmLab, needs_slurm
from tests.integration.slurm_servers import (
    Manners,
    cut_off,
    drip,
    endless_head,
    endless_line,
    hang_up,
    other_program,
    reply,
    serve,
    silence,
)

pytestmark = needs_slurm

SPEC = '{"model": {"source": "torchvision", "name": "resnet18"}, "batch_size": 8}'
HEAD = f"#MEMGATE {SPEC}"
GPU = "--gres=gpu:t4:1"

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[SlurmLab]:
    """Start Slurm once for all tests here."""
    with TemporaryDirectory(prefix="mg") as name, SlurmLab(Path(name)) as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: SlurmLab) -> Iterator[SlurmLab]:
    """Have the plugin remember nothing of the test before; leave no job to the next."""
    shared_lab.reload()
    yield shared_lab
    shared_lab.clear()


def _slack(lab: SlurmLab) -> float:
    """Return what a command may take beside waiting: more on a machine that is busy just now."""
    return 1.0 + 10 * max(lab.run("sinfo", "-h").seconds for _ in range(3))


def _outcome(lab: SlurmLab, ran: Ran) -> str:
    if ran.status != 0:
        return "rejected"
    return "held" if lab.job(ran.job)["priority"] == 0 else "admitted"


POLICIES = [("admit", "admitted"), ("reject", "rejected"), ("hold", "held")]


@pytest.mark.parametrize(("policy", "want"), POLICIES)
def test_with_memgate_down_the_policy_decides(lab: SlurmLab, policy: str, want: str) -> None:
    """And the owner is told."""
    lab.set(url=NOWHERE, on_unanswered=policy, hold_seconds=0)

    ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert _outcome(lab, ran) == want
    assert "memgate: no answer yet: connection refused" in ran.err
    assert ran.seconds < _slack(lab)


@pytest.mark.parametrize(("policy", "want"), POLICIES)
def test_with_memgate_silent_the_policy_decides(lab: SlurmLab, policy: str, want: str) -> None:
    """After the bound, and no later."""
    with serve(silence) as url:
        lab.set(url=url, on_unanswered=policy, hold_seconds=0)
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert _outcome(lab, ran) == want
    assert 0.4 <= ran.seconds < 0.5 + _slack(lab)


@pytest.mark.parametrize("manners", [silence, drip, endless_head, endless_line])
def test_sinfo_is_never_held_longer_than_the_bound(lab: SlurmLab, manners: Manners) -> None:
    """Slurm answers nobody while the plugin runs: so it runs for half a second at the most.

    GIVEN a server that never answers, in several ways, WHEN eight jobs are submitted at once, THEN
    whoever asks Slurm meanwhile has an answer within the bound: eight jobs do not wait eight times.
    """
    bound = 0.5
    slack = _slack(lab)
    waits: list[float] = []
    with serve(manners) as url:
        lab.set(url=url)
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(lab.sbatch, GPU, head=HEAD) for _ in range(8)]
            while not all(job.done() for job in jobs):
                waits.append(lab.run("sinfo", "-h").seconds)
                time.sleep(0.05)

    ran = [job.result() for job in jobs]
    assert [one.status for one in ran] == [0] * 8
    print(f"{manners.__name__}: sinfo waited {max(waits):.2f} s at the most")  # noqa: T201
    assert max(waits) < bound + slack
    assert max(one.seconds for one in ran) < bound + 2 * slack


DETAIL = json.dumps({"title": "Busy", "code": "QUEUE_FULL", "detail": "100% of it \x1b[31mwaits"})


@pytest.mark.parametrize(
    ("manners", "want"),
    [
        (hang_up, "the connection was closed"),
        (cut_off, "the connection was closed"),
        (other_program, "the connection was closed"),
        (reply(200, b"<html>hello</html>"), "HTTP 200, and not in memgate's form"),
        (reply(200, b'{"decision": "admit"}'), "HTTP 200, and not in memgate's form"),
        (reply(200, b"[" * 100_000), "HTTP 200, and not in memgate's form"),
        (reply(429, DETAIL.encode()), "HTTP 429 100% of it  [31mwaits"),
        (reply(503, DETAIL.encode()), "HTTP 503 100% of it"),
        (reply(401, b'{"code": "NO_KEY", "detail": "no key"}'), "HTTP 401 no key"),
        (reply(404, b"null"), "HTTP 404, and not in memgate's form"),
    ],
    ids=["hangs-up", "cut", "mail", "html", "half", "deep", "429", "503", "401", "404"],
)
def test_what_is_no_answer_counts_as_none(lab: SlurmLab, manners: Manners, want: str) -> None:
    """Under fail-closed nothing but an admission lets a job in; what is shown is plain text."""
    with serve(manners) as url:
        lab.set(url=url, on_unanswered="reject")
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert ran.status == 1
    assert want in ran.err
    assert "\x1b" not in ran.err


def test_what_cannot_be_told_counts_as_uncertain(lab: SlurmLab) -> None:
    """Another description of the job would not help: its owner is not to blame."""
    problem = {"code": "NOT_MODELLED", "fault": "unsupported", "detail": "it calls cuFFT"}
    with serve(reply(422, json.dumps(problem).encode())) as url:
        lab.set(url=url, on_uncertain="hold")
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert _outcome(lab, ran) == "held"
    assert "a limit of memgate's, not the job's: it calls cuFFT" in ran.err
    assert "an administrator decides" in ran.err


#: what may be wrong with our Lua: in which file, what is there, and what in its place
BREAKS = {
    "error": ("question", "function question.body(", "function question.no_body("),
    "error-value": ("question", "local parts = ", "error({})\n  local parts = "),
    "first-call": ("question", "local comment = job.comment", "no_such_function()"),
    "words": ("words", "function words.plain(text)", "function words.plain(text) error('x')"),
    "no-gate": ("gate", "function gate.submit(", "function gate.no_submit("),
    "gate-error": (
        "gate",
        "local is_done, result = pcall(submit, path, job, partitions, state)",
        "error({})",
    ),
    "gate-nothing": (
        "gate",
        'if is_done and type(result) == "number" then return result end\n  return on_error(state',
        "if is_done then return nil end\n  return on_error(state",
    ),
}


def _broken(lab: SlurmLab, how: str) -> Callable[[], None]:
    """Break something in memgate's own files; return what mends it."""
    lab.set(on_error="reject", url=NOWHERE)
    module, old, new = BREAKS[how]
    path = lab.etc / "memgate" / f"{module}.lua"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    lab.reload()

    def mend() -> None:
        path.write_text(text)
        lab.reload()
        lab.set(url=NOWHERE)

    return mend


@pytest.mark.parametrize("how", [*BREAKS])
def test_an_error_of_ours_never_admits_under_fail_closed(lab: SlurmLab, how: str) -> None:
    """Slurm itself would let the job in. Jobs that are not ours are let in all the same."""
    mend = _broken(lab, how)
    try:
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)
        other = lab.sbatch(GPU, nobody=True)
    finally:
        mend()

    assert ran.status == 1
    assert "memgate: failed, and no job with a description is let in" in ran.err
    assert (other.status, other.err) == (0, "")
    assert lab.sbatch(GPU, head=HEAD, nobody=True).status == 0


def test_broken_settings_leave_the_last_good_ones(lab: SlurmLab) -> None:
    """Nothing more is enforced than before: nothing at all, if it is not known what was."""
    lab.set(url=NOWHERE, on_unanswered="reject")
    before = lab.sbatch(GPU, head=HEAD, nobody=True)
    lab.set(no_such_setting=1)
    broken = lab.sbatch(GPU, head=HEAD, nobody=True)
    lab.reload()
    unknown = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert [one.status for one in (before, broken, unknown)] == [1, 1, 0]
    assert "memgate: failed, and this job was not checked" in unknown.err
    assert "there is no setting no_such_setting" in lab.log


def test_an_error_of_ours_admits_under_fail_open(lab: SlurmLab) -> None:
    """And says that nothing was checked."""
    mend = _broken(lab, "error-value")
    try:
        lab.set(on_error="admit", url=NOWHERE)
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)
    finally:
        mend()

    assert ran.status == 0
    assert "memgate: failed, and this job was not checked" in ran.err


def test_a_key_that_cannot_be_read_is_no_answer(lab: SlurmLab) -> None:
    """What is done without one is done, whatever an error of ours would do."""
    lab.set(on_error="admit", on_unanswered="reject", key_file="/nonexistent")

    ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert ran.status == 1
    assert "until its operator acts" in ran.err
    assert "/nonexistent" in ran.err


def test_a_script_that_does_not_load_leaves_the_one_before(lab: SlurmLab) -> None:
    """Who breaks job_submit.lua while Slurm runs does not open the gate."""
    lab.set(url=NOWHERE, on_unanswered="reject")
    path = lab.etc / "job_submit.lua"
    text = path.read_text()
    lab.reload()  # the one before is that of these settings, and not of another test
    before = lab.sbatch(GPU, head=HEAD, nobody=True)
    try:
        path.write_text("this is not Lua")
        lab.reload()
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)
    finally:
        path.write_text(text)
        lab.reload()

    assert "memgate: no answer yet" in before.err
    assert ran.status == 1
    assert "memgate: no answer yet" in ran.err


def test_the_lines_for_a_script_of_your_own_do_the_same(lab: SlurmLab) -> None:
    """As docs/slurm.md has them: a job is held, and its owner cannot release it."""
    page = (ROOT / "docs" / "slurm.md").read_text()
    own = page.rpartition("```lua\n")[2].partition("```")[0].replace("/etc/slurm", str(lab.etc))
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0)
    path = lab.etc / "job_submit.lua"
    text = path.read_text()
    try:
        path.write_text(own)
        lab.reload()
        ran = lab.sbatch(GPU, head=HEAD, nobody=True)
        release = lab.run("scontrol", "release", str(ran.job), nobody=True)
        other = lab.sbatch(GPU, nobody=True)
    finally:
        path.write_text(text)
        lab.reload()

    assert "it is held until that is known" in ran.err
    assert release.status == 1
    assert lab.job(ran.job)["priority"] == 0
    assert (other.status, other.err) == (0, "")


@pytest.mark.parametrize(
    "options", [[GPU], [], ["--gres=gpu:t4:1", "--comment=for the paper"]], ids=["gpu", "cpu", "c"]
)
def test_a_job_without_a_description_passes_untouched(lab: SlurmLab, options: list[str]) -> None:
    """At once: nobody is asked, nothing is said, nothing is written into it."""
    with serve(silence) as url:
        lab.set(url=url, on_unanswered="reject")
        ran = lab.sbatch(*options, head="# MEMGATE is great", nobody=True)

    assert (ran.status, ran.err) == (0, "")
    assert ran.seconds < _slack(lab)
    assert lab.record(ran.job) is None


@pytest.mark.parametrize("options", [[], ["--gres=gpu:t4:0"]], ids=["none", "zero"])
def test_a_job_without_a_gpu_passes_and_gets_none_later(lab: SlurmLab, options: list[str]) -> None:
    """Nobody is asked, nothing is said; its owner may change all but that."""
    with serve(silence) as url:
        lab.set(url=url, on_unanswered="reject")
        ran = lab.sbatch(*options, "--hold", head=HEAD, nobody=True)
    change = ["scontrol", "update", f"JobId={ran.job}"]

    assert (ran.status, ran.err) == (0, "")
    assert lab.record(ran.job) == {"decision": "no_gpu"}
    assert lab.run(*change, "Gres=gpu:t4:1", nobody=True).status == 1
    assert lab.run(*change, "TresPerJob=gpu:t4:1", nobody=True).status == 1
    assert lab.run(*change, "OverSubscribe=NO", nobody=True).status == 1
    assert lab.run(*change, "Partition=whole", nobody=True).status == 1
    assert lab.run(*change, "TimeLimit=5", nobody=True).status == 0
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 0
    lab.wait_for(ran.job, "COMPLETED")


@pytest.mark.parametrize("options", [["--exclusive"], ["--partition=whole"]])
def test_a_job_with_whole_nodes_has_their_gpus(lab: SlurmLab, options: list[str]) -> None:
    """Slurm gives it every GPU of a node, though it names none."""
    lab.set(on_unknown_gpu="reject")

    ran = lab.sbatch(*options, head=HEAD, nobody=True)

    assert ran.status == 1
    assert "it does not say which kind of GPU" in ran.err


def test_every_kind_of_gpu_that_a_job_asks_for_counts(lab: SlurmLab) -> None:
    """Slurm gives it both: being judged for the larger one alone would let it in on the smaller."""
    lab.set(on_unknown_gpu="reject")

    ran = lab.sbatch("--gpus=a100:1", "--gres=gpu:t4:1", head=HEAD, nobody=True)

    assert ran.status == 1
    assert "it asks for several kinds of GPU" in ran.err
    assert "memgate: it was not submitted: such jobs are refused here" in ran.err


BAD_SPECS: list[tuple[str, str]] = [
    ("#MEMGATE {", "not a JSON object"),
    ("#MEMGATE [1]", "not a JSON object"),
    ('#MEMGATE {}, "gpu": "h200"', "not a JSON object"),
    ('#MEMGATE {}}{"job": {}', "not a JSON object"),
    (f"#MEMGATE {'[' * 20000}", "bytes long, 16384 are allowed"),
    (f'#MEMGATE {{"a": {"[" * 100}{"]" * 100}}}', "not a JSON object"),
    (f'#MEMGATE {{"a": "{"x" * 3_000_000}"}}', "bytes long, 16384 are allowed"),
]


@pytest.mark.parametrize(
    ("head", "want"), BAD_SPECS, ids=["cut", "list", "more", "two", "deep", "nested", "huge"]
)
def test_a_hostile_description_goes_nowhere(lab: SlurmLab, head: str, want: str) -> None:
    """It is refused here, soon, without a word to memgate."""
    with serve(silence) as url:
        lab.set(url=url)
        ran = lab.sbatch(GPU, head=head, nobody=True)

    assert ran.status == 1
    assert "memgate: the description of the job is wrong: it is " in ran.err
    assert want in ran.err
    assert ran.seconds < _slack(lab)


def test_a_part_of_a_job_is_held_and_guarded_too(lab: SlurmLab) -> None:
    """Slurm says that it has released all of a heterogeneous job: what we hold, it has not."""
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0)
    script = lab.home / "work" / "parts.sh"
    script.write_text(f"#!/bin/sh\n{HEAD}\nexit 0\n")
    ran = lab.run("sbatch", "--output=/dev/null", GPU, ":", "-n1", str(script), nobody=True)

    lab.run("scontrol", "release", str(ran.job), nobody=True)

    assert lab.job(ran.job)["priority"] == 0
    assert lab.record(ran.job)["held"] is True


def test_a_guard_that_is_broken_stays_shut(lab: SlurmLab) -> None:
    """GIVEN a held job, WHEN the settings are broken, THEN its owner cannot release it either."""
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0)
    ran = lab.sbatch(GPU, head=HEAD, nobody=True)
    lab.set(no_such_setting=1)

    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 1
    assert lab.job(ran.job)["priority"] == 0
    assert lab.run("scontrol", "release", str(ran.job)).status == 0


@pytest.mark.parametrize("rest", ["return {}", ""], ids=["nothing-in-it", "empty"])
def test_a_gate_that_is_gone_stays_shut(lab: SlurmLab, rest: str) -> None:
    """WHEN our Lua cannot be called, THEN nobody comes in or out, and others do not notice."""
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0, on_error="reject")
    held = lab.sbatch(GPU, head=HEAD, nobody=True)
    other = lab.sbatch(GPU, "--hold", nobody=True)
    path = lab.etc / "memgate" / "gate.lua"
    text = path.read_text()
    try:
        path.write_text(rest)
        lab.reload()
        assert lab.sbatch(GPU, head=HEAD, nobody=True).status == 1
        assert lab.run("scontrol", "release", str(held.job), nobody=True).status == 1
        assert lab.run("scontrol", "release", str(other.job), nobody=True).status == 0
        assert lab.run("scontrol", "update", f"JobId={held.job}", "TimeLimit=9").status == 0
    finally:
        path.write_text(text)
        lab.reload()

    assert lab.job(held.job)["priority"] == 0


def test_a_record_that_somebody_added_to_still_guards(lab: SlurmLab) -> None:
    """Another tool's words behind it make it unreadable, not void."""
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0)
    ran = lab.sbatch(GPU, head=HEAD, nobody=True)
    longer = f"AdminComment={lab.job(ran.job)['admin_comment']} and more, by hand"
    assert lab.run("scontrol", "update", f"JobId={ran.job}", longer).status == 0

    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 1
    assert "by hand" in lab.job(ran.job)["admin_comment"]


def test_who_may_change_held_jobs_is_a_setting(lab: SlurmLab) -> None:
    """Uids of operators and of SlurmUser, beside root."""
    lab.set(url=NOWHERE, on_unanswered="hold", hold_seconds=0, admins=[0, 65534])
    ran = lab.sbatch(GPU, head=HEAD, nobody=True)

    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 0
    lab.wait_for(ran.job, "COMPLETED")
