"""What slurmctld's plugin does with a job: by the answer, the settings and the policy's mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.units import GIB
from tests.admission import make_estimate
from tests.unit.service.canned_server import JOB_ID
from tests.unit.slurm.test_lua import pytestmark, run_lua

__all__ = ["pytestmark"]

_SUBMIT = """
local given = cjson.decode(io.read("*a"))
local printed, logged, num_asked = {}, {}, 0
local function log(text, ...) logged[#logged + 1] = text:format(...) end
slurm = {
  SUCCESS = 0, ERROR = -1, log_error = log, log_info = log,
  log_user = function(_, text) printed[#printed + 1] = text end,
}
package.loaded["memgate.http"] = {
  now = function() return 1700000000.25 end,
  post = function()
    num_asked = num_asked + 1
    local said = given.answers[math.min(num_asked, #given.answers)]
    return {status = said.status, body = cjson.encode(said.document)}
  end,
}
local gate, words = require("memgate.gate"), require("memgate.words")
local says = {}
for index, job in ipairs(given.jobs) do
  printed, logged = {}, {}
  if given.texts[index] then
    local file = assert(io.open(given.policy, "w"))
    file:write(given.texts[index])
    file:close()
  end
  local status = gate.submit(given.conf, job, {})
  says[index] = {
    status = status, printed = printed, logged = logged, num_asked = num_asked,
    record = words.read_record(job.admin_comment), priority = job.priority,
    tres_per_node = job.tres_per_node,
    begin_time = job.begin_time,
  }
end
print(cjson.encode(says))
"""

JOB: dict[str, Any] = {
    "tres_per_node": "gres:gpu:t4:1",
    "comment": 'memgate:{"a": 1}',
    "user_name": "ada",
    "account": "lab",
    "partition": "debug",
    "name": "train",
}
BARE = {name: value for name, value in JOB.items() if name != "comment"}


def problem(fault: str) -> dict[str, Any]:
    """Return a server's answer that there is no estimate, and whose fault that is."""
    document = {"code": "ANY", "detail": "why not", "fault": fault, "job": JOB_ID}
    return {"status": 422, "document": document}


def estimate(peak_bytes: int) -> dict[str, Any]:
    """Return a server's estimate for a T4."""
    return {"status": 200, "document": make_estimate(peak_bytes).model_dump(mode="json")}


class Plugin:
    """The plugin, in Lua of its own, with files of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spool = home / "audit.jsonl"

    def submit(
        self,
        *jobs: dict[str, Any],
        answers: list[dict[str, Any]] | None = None,
        policies: list[str | None] | None = None,
        settings: str = "",
    ) -> list[dict[str, Any]]:
        """Submit jobs one after the other; before each, the policy may be written anew."""
        conf = self.home / "memgate.conf.lua"
        conf.write_text(
            f"return {{gpu_of_type = {{t4 = 't4'}}, audit_file = '{self.spool}', {settings}}}"
        )
        given = {
            "jobs": jobs,
            "answers": answers or [estimate(GIB)],
            "texts": [text if text is not None else False for text in policies or []],
            "conf": str(conf),
            "policy": str(self.home / "memgate.policy.json"),
        }
        says: list[dict[str, Any]] = json.loads(run_lua(_SUBMIT, given))
        return [said | {"printed": list(said["printed"])} for said in says]

    def audited(self) -> list[dict[str, Any]]:
        """Return the records of the audit."""
        return [json.loads(line) for line in self.spool.read_text().splitlines()]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """Make a plugin."""
    return Plugin(tmp_path)


#: whose fault it is, and what becomes of a job: as ``test_release`` has it for those that are held
FAULTS: list[tuple[str, int, str | None, bool]] = [
    ("caller", -1, None, False),
    ("job", 0, "uncertain", False),
    ("unsupported", 0, "uncertain", False),
    ("operator", 0, "pending", True),
    ("passing", 0, "pending", True),
    ("of a later version", 0, "pending", True),
]


@pytest.mark.parametrize(("fault", "status", "decision", "is_held"), FAULTS)
def test_the_fault_alone_decides(
    plugin: Plugin, fault: str, status: int, decision: str | None, is_held: bool
) -> None:
    """Only an author's own mistake refuses a job; without an answer it is held, by a timer."""
    (said,) = plugin.submit(JOB, answers=[problem(fault)])

    record = said.get("record") or {}
    assert "why not" in said["printed"][0]
    assert (said["status"], record.get("decision")) == (status, decision)
    assert ("question" in record, "timer" in record, "begin_time" in said) == (is_held,) * 3
    assert "priority" not in said


def test_a_held_job_starts_by_itself_when_the_timer_ends(plugin: Plugin) -> None:
    """Slurm keeps the timer as a start time; one that its owner set later stays."""
    later = 4_000_000_000
    held, own = plugin.submit(JOB, JOB | {"begin_time": later}, answers=[problem("passing")])

    assert held["begin_time"] == held["record"]["timer"]
    assert (own["begin_time"], own["record"]["begin"]) == (later, later)


def test_without_a_timer_a_job_is_held_by_its_priority(plugin: Plugin) -> None:
    """For operators who want nothing in unseen."""
    (said,) = plugin.submit(JOB, answers=[problem("passing")], settings="hold_seconds = 0")

    assert (said["priority"], said["record"]["held"]) == (0, True)
    assert "timer" not in said["record"]


HARSH = (
    "on_reject = 'reject', on_uncertain = 'hold', on_unanswered = 'hold', on_bad_spec = 'reject',"
    " on_unknown_gpu = 'reject', on_undescribed = 'reject', on_error = 'reject'"
)
EVERYTHING: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("does not fit", JOB, estimate(20 * GIB), "refused"),
    ("would fail", JOB, problem("job"), "held"),
    ("mistake", JOB, problem("caller"), "refused"),
    ("no answer", JOB, problem("passing"), "held"),
    ("not JSON", JOB | {"comment": "memgate:{"}, estimate(GIB), "refused"),
    ("unknown GPU", JOB | {"tres_per_node": "gres:gpu:h100:1"}, estimate(GIB), "refused"),
    ("undescribed", BARE, estimate(GIB), "refused"),
    ("our own error", JOB, {"status": 200, "document": None}, "held"),
]


@pytest.mark.parametrize(("_", "job", "answer", "want"), EVERYTHING, ids=[e[0] for e in EVERYTHING])
@pytest.mark.parametrize("mode", ["enforce", "warn", "audit"])
def test_only_enforce_refuses_or_holds(
    plugin: Plugin, mode: str, _: str, job: dict[str, Any], answer: dict[str, Any], want: str
) -> None:
    """GIVEN the harshest settings, THEN warn tells what would happen, and audit says nothing."""
    policy = json.dumps({"mode": mode})
    (said,) = plugin.submit(job, answers=[answer], policies=[policy], settings=HARSH)

    (record,) = plugin.audited()
    assert (record["user"], record["account"], record["partition"]) == ("ada", "lab", "debug")
    assert (record["mode"], record["rule"]) == (mode, "cluster")
    if mode == "enforce":
        assert record["done"] == want
        assert (said["status"] == -1) == (want == "refused")
        assert said["printed"]
        return
    assert (said["status"], record["done"], record["would"]) == (0, "admitted", want)
    assert "begin_time" not in said
    assert "priority" not in said
    told = [line for line in said["printed"] if f"it would be {want}" in line]
    assert (len(told), bool(said["printed"])) == ((1, True) if mode == "warn" else (0, False))


def test_a_failure_of_ours_refuses_only_where_that_is_enforced(plugin: Plugin) -> None:
    """on_error = reject: with an answer that makes Lua fail, in each mode; the audit has each."""
    policies: list[str | None] = [json.dumps({"mode": one}) for one in ("enforce", "warn", "audit")]
    broken: list[dict[str, Any]] = [{}]
    shut, warned, silent = plugin.submit(
        JOB, JOB, JOB, answers=broken, policies=policies, settings=HARSH
    )

    assert [one["status"] for one in (shut, warned, silent)] == [-1, 0, 0]
    assert "no job with a description is let in" in shut["printed"][0]
    assert (warned["printed"], silent["printed"]) == (
        ["memgate: failed, and this job was not checked"],
        [],
    )
    assert [(one["mode"], one["done"]) for one in plugin.audited()] == [
        ("enforce", "refused"),
        ("warn", "admitted"),
        ("audit", "admitted"),
    ]


@pytest.mark.parametrize("key", [None, "", "two words"])
def test_a_key_that_is_none_is_the_operators_mistake(plugin: Plugin, key: str | None) -> None:
    """The job waits for its answer like every one that the operator keeps memgate from giving."""
    path = plugin.home / "key"
    if key is not None:
        path.write_text(key)
    (said,) = plugin.submit(JOB, settings=f"key_file = '{path}'")

    assert (said["status"], said["record"]["held"], said["num_asked"]) == (0, True, 0)
    assert "until its operator acts" in said["printed"][0]
    assert str(path) in said["printed"][0]
    assert plugin.audited()[0]["done"] == "held"


def test_a_broken_policy_leaves_the_last_good_one(plugin: Plugin) -> None:
    """It is logged once, never enforces more than before, and is mended without a restart."""
    policies = ['{"mode": "audit"}', '{"mode": "enforced"}', "{", '{"mode": "enforce"}']
    says = plugin.submit(JOB, JOB, JOB, JOB, answers=[estimate(20 * GIB)], policies=[*policies])

    assert [one["status"] for one in says] == [0, 0, 0, -1]
    assert "it must be one of enforce, warn, audit" in says[1]["logged"][0]
    assert "it is not JSON" in says[2]["logged"][0]


def test_a_policy_that_was_never_right_enforces_nothing(plugin: Plugin) -> None:
    """After a restart it is not known what was in force before."""
    (said,) = plugin.submit(JOB, answers=[estimate(20 * GIB)], policies=["{"])

    assert (said["status"], said["printed"]) == (0, [])
    assert plugin.audited()[0]["mode"] == "audit"


def test_a_policy_that_may_not_be_read_enforces_nothing(plugin: Plugin) -> None:
    """A file without the rights, or a directory, is not a file that was never there."""
    (plugin.home / "memgate.policy.json").mkdir()
    (said,) = plugin.submit(JOB, answers=[estimate(20 * GIB)])

    assert (said["status"], said["printed"]) == (0, [])
    assert "it cannot be read" in said["logged"][0]


@pytest.mark.parametrize("partition", ["lax,strict", "strict,lax"])
def test_the_order_of_partitions_changes_nothing(plugin: Plugin, partition: str) -> None:
    """Of several that are enforced the strictest action counts, whichever is named first."""
    policy = '{"rules": [{"partition": "lax", "on": {"reject": "admit"}}]}'
    job = JOB | {"partition": partition}
    (said,) = plugin.submit(job, answers=[estimate(20 * GIB)], policies=[policy])

    assert said["status"] == -1


def test_who_is_exempt_is_not_asked_about(plugin: Plugin) -> None:
    """Nothing is said, nothing is asked; the audit has it."""
    policy = '{"exempt": [{"name": "ops", "account": "lab"}]}'
    (said,) = plugin.submit(JOB, answers=[estimate(20 * GIB)], policies=[policy])

    assert (said["status"], said["printed"], said["num_asked"]) == (0, [], 0)
    assert [(one["decision"], one["rule"]) for one in plugin.audited()] == [("exempt", "ops")]


def test_undescribed_jobs_are_counted(plugin: Plugin) -> None:
    """Those with a GPU: nothing is said or asked, and nothing is written into the job."""
    says = plugin.submit(BARE, {"partition": "debug"})

    assert [(one["status"], one["printed"], one["num_asked"]) for one in says] == [(0, [], 0)] * 2
    assert all("record" not in one for one in says)
    (record,) = plugin.audited()
    assert (record["decision"], record["done"], record["gpu"]) == ("undescribed", "admitted", "t4")


#: with a script, whose arguments slurmctld has, too
ARGV = {"0": "job.sh", "1": "--batch", "2": "8"}
SCRIPTED = BARE | {"script": "#!/bin/sh\ntrain\n", "argc": 3, "argv": ARGV}
REHEARSE = "on_undescribed = 'rehearse'"


def test_a_job_to_be_rehearsed_is_held_by_a_timer(plugin: Plugin) -> None:
    """With what its rehearsal needs; one that begins later anyway has until then."""
    later = 4_000_000_000
    said, with_begin = plugin.submit(SCRIPTED, SCRIPTED | {"begin_time": later}, settings=REHEARSE)

    record = said["record"]
    assert (said["status"], record["decision"], record["held"]) == (0, "rehearsal", True)
    assert record["arguments"] == ["--batch", "8"]
    assert (record["gpu"], record["gpus"], record["late"]) == ("t4", 1, "reject")
    assert said["begin_time"] == record["timer"]
    assert "nobody has described this job" in said["printed"][0]
    assert with_begin["record"]["timer"] == with_begin["begin_time"] == later
    assert plugin.audited()[0]["done"] == "held"


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_where_nothing_is_enforced_a_rehearsal_runs_beside_the_job(
    plugin: Plugin, mode: str
) -> None:
    """It is not held; its record asks for the rehearsal."""
    (said,) = plugin.submit(SCRIPTED, policies=[json.dumps({"mode": mode})], settings=REHEARSE)

    assert (said["record"]["decision"], said["record"]["mode"]) == ("rehearsal", mode)
    assert "held" not in said["record"]
    assert "begin_time" not in said
    assert bool(said["printed"]) == (mode == "warn")


def test_what_cannot_or_shall_not_be_rehearsed_is_counted(plugin: Plugin) -> None:
    """Its owner says so, or there is no script, or its arguments are too long to be noted."""
    skipped = SCRIPTED | {"comment": "memgate:skip"}
    long = SCRIPTED | {"argc": 2, "argv": {"0": "job.sh", "1": "x" * 3000}}
    says = plugin.submit(skipped, BARE, long, settings=REHEARSE)

    assert all(one["status"] == 0 and "record" not in one for one in says)
    want = ["skipped", "undescribed", "undescribed"]
    assert [one["decision"] for one in plugin.audited()] == want


def test_a_near_miss_is_told_and_recorded(plugin: Plugin) -> None:
    """Its owner believes that the job is described."""
    (said,) = plugin.submit(BARE | {"script": "#!/bin/sh\n#MEMGAT {}\ntrain\n"})

    assert said["printed"] == [
        'memgate: a line begins with "#MEMGAT {": if it describes the job, write #MEMGATE {'
    ]
    assert "#MEMGAT {" in plugin.audited()[0]["near_miss"]


CARDS: list[tuple[list[int], int, str]] = [
    ([GIB, GIB], 0, "admit"),
    ([20 * GIB, GIB], 0, "uncertain"),
    ([20 * GIB, 20 * GIB], -1, "reject"),
]


@pytest.mark.parametrize(("peaks", "status", "decision"), CARDS)
def test_a_job_that_may_get_one_of_several_cards(
    plugin: Plugin, peaks: list[int], status: int, decision: str
) -> None:
    """It is refused if it fits on none of them, and warned if not on all."""
    job = JOB | {"tres_per_node": "gres:gpu:1", "partition": "small,large"}
    (said,) = plugin.submit(
        job,
        answers=[estimate(peak) for peak in peaks],
        settings="gpu_of_partition = {small = 't4', large = 'a100-80'}",
    )

    assert (said["status"], said["num_asked"]) == (status, 2)
    assert plugin.audited()[0]["decision"] == decision


def test_a_part_of_a_job_does_not_say_that_the_job_is_let_in(plugin: Plugin) -> None:
    """Another part may be refused, and all of the job with it."""
    part, whole = plugin.submit(
        JOB | {"het_job_offset": 0},
        JOB,
        answers=[problem("passing")],
        settings="on_unanswered = 'admit'",
    )

    assert "memgate: it is let in" in whole["printed"]
    assert "memgate: it is let in" not in part["printed"]


def test_a_first_part_that_may_have_anothers_description_is_told(plugin: Plugin) -> None:
    """Slurm 22.05 gives it the comment of a later part; a script of its own leaves no doubt."""
    part = JOB | {"het_job_offset": 0, "script": "#!/bin/sh\n"}
    own = part | {"script": '#!/bin/sh\n#MEMGATE {"a": 2}\n'}
    later = JOB | {"het_job_offset": 1, "script": "#!/bin/sh\n"}
    said = plugin.submit(part, own, later, answers=[estimate(GIB)] * 3)

    doubts = ["the first part is judged by --comment" in str(one["printed"]) for one in said]
    assert doubts == [True, False, False]


def test_a_record_is_small(plugin: Plugin) -> None:
    """Whatever a user writes: under a kilobyte."""
    long = "x" * 5000
    plugin.submit(
        JOB | {"name": long, "account": long, "partition": long}, answers=[problem("job")]
    )

    assert len(plugin.spool.read_bytes()) < 1024


_CARDS = "gpu_of_type = {a100 = 'a100-40', t4 = 't4'}, default_gpu = 'a100-40'"


@pytest.mark.parametrize("prefix", ["gres:gpu", "gres/gpu", "gpu"])
def test_the_smallest_gpu_is_filled_in_where_the_policy_allows_it(
    plugin: Plugin, prefix: str
) -> None:
    """For a job that asks for any; its owner is told, and its record is about that GPU."""
    policy = json.dumps({"on": {"untyped": "right_size"}})
    any_gpu = JOB | {"tres_per_node": f"{prefix}:2"}
    (said,) = plugin.submit(any_gpu, policies=[policy], settings=_CARDS)

    assert said["tres_per_node"] == f"{prefix}:t4:2"
    assert said["record"]["gpu"] == "t4"
    assert "gets the smallest here on which it fits: --gres=gpu:t4" in said["printed"][-1]


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ({}, {}),
        ({"mode": "warn", "on": {"untyped": "right_size"}}, {}),
        ({"on": {"untyped": "right_size"}}, {"features": "big"}),
        ({"on": {"untyped": "right_size"}}, {"tres_per_node": "gres:gpu:a100:1"}),
    ],
    ids=["not allowed", "nothing is enforced", "a constraint decides", "it names a kind"],
)
def test_otherwise_a_job_keeps_what_it_asked_for(
    plugin: Plugin, policy: dict[str, Any], more: dict[str, Any]
) -> None:
    """In warn and audit mode nothing is ever changed."""
    asked = JOB | {"tres_per_node": "gres:gpu:1"} | more
    (said,) = plugin.submit(asked, policies=[json.dumps(policy)], settings=_CARDS)

    assert (said["status"], said["tres_per_node"]) == (0, asked["tres_per_node"])
