"""The Lua of Slurm's plugins: what is read of a job, and of the settings."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgate.gpus import CATALOGUE

PLUGINS = Path(__file__).parents[3] / "deploy" / "slurm"

#: Slurm is built with one or another of them
VERSIONS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]

pytestmark = pytest.mark.skipif("lua5.1" not in VERSIONS, reason="lua5.1 is missing: make parts")

_START = f"""
package.path = "{PLUGINS}/?.lua;" .. package.path
require("memgate.paths")
local cjson = require("cjson.safe")
"""

_READ_JOBS = """
local question = require("memgate.question")
local given = cjson.decode(io.read("*a"))
local says = {}
for index, job in ipairs(given.jobs) do
  local spec, warning = question.find_spec(job)
  local gpu, why = question.find_gpu(job, given.settings)
  local problem = spec and question.find_problem(spec, 16384)
  local body = spec and gpu and not problem and question.body(spec, gpu) or nil
  says[index] = {spec = spec, warning = warning, gpu = gpu, why = why, problem = problem,
                 body = body}
end
print(cjson.encode(says))
"""

SETTINGS = {
    "gpu_of_type": {"a100": "a100-80", "t4": "t4"},
    "gpu_of_feature": {"big": "h100-80"},
    "gpu_of_partition": {"small": "rtx-3060", "tiny": "rtx-3060", "large": "a100-80"},
    "default_gpu": "",
}


def run_lua(code: str, given: object = None, lua: str = "lua5.1") -> str:
    """Run Lua that finds the plugins' modules."""
    ran = subprocess.run(
        [lua, "-e", _START + code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def read(*jobs: dict[str, Any], lua: str = "lua5.1", **more: Any) -> list[dict[str, Any]]:
    """Have Lua read jobs, as the controller has them."""
    given = {"jobs": jobs, "settings": SETTINGS | more}
    says: list[dict[str, Any]] = json.loads(run_lua(_READ_JOBS, given, lua))
    return says


SCRIPTS: list[tuple[str, str | None, str | None]] = [
    ("#!/bin/sh\n#MEMGATE {}\ntrain\n", " {}", None),
    ("#!/bin/sh\n#SBATCH -n1\n\n# words\n#MEMGATE {}\n", " {}", None),
    ('#!/bin/sh\n#MEMGATE {"a":\n#SBATCH -n1\n#MEMGATE 1}', ' {"a":\n 1}', None),
    ("#!/bin/sh\r\n#MEMGATE\t{}\r\ntrain\r\n", "\t{}\r", None),
    ("#!/bin/sh\n   # indented\n#MEMGATE {}\n", " {}", None),
    ('#!/bin/sh\n#MEMGATE{"a":\n#MEMGATE 1}\n', '{"a":\n 1}', None),
    ("#!/bin/sh\n#MEMGATES {}\n #MEMGATE {}\n", None, None),
    ("#!/bin/sh\ntrain\n#MEMGATE {}\n", None, "is not read"),
    ("#!/bin/sh\nx\n#MEMGATE {}\n", None, "is not read"),
    ("#!/bin/sh\n#MEMGATE {}\ntrain\n#MEMGATE 1\n", " {}", None),
    ("#MEMGATE {}", " {}", None),
    ("", None, None),
]


def test_slurmctld_does_not_read_four_megabytes() -> None:
    """It waits meanwhile: what comes after 256 KiB of comments is not looked for."""
    near, far = read(
        *({"script": "#!/bin/sh\n" + "#\n" * num + "#MEMGATE {}\n"} for num in (100_000, 200_000))
    )

    assert near["spec"] == " {}"
    assert "spec" not in far
    assert "is not read" in far["warning"]


def test_a_description_in_yaml_is_told_from_a_wrong_one() -> None:
    """The command line reads YAML; Lua does not."""
    (said,) = read({"comment": "memgate:model: {source: torchvision}"})

    assert said["problem"].endswith('; write {"model": {...}, ...}, not YAML')


@pytest.mark.parametrize("lua", VERSIONS)
def test_directive_lines_are_read_up_to_the_first_command(lua: str) -> None:
    """As Slurm reads its own; several lines are one description; one too late is warned of."""
    says = read(*({"script": script} for script, _, _ in SCRIPTS), lua=lua)

    assert [one.get("spec") for one in says] == [spec for _, spec, _ in SCRIPTS]
    for said, (_, _, warning) in zip(says, SCRIPTS, strict=True):
        assert (warning is None) == ("warning" not in said)
        assert (warning or "") in said.get("warning", "")


def test_the_command_line_comes_before_the_script() -> None:
    """A comment of memgate's; any other comment is somebody's own affair."""
    script = "#!/bin/sh\n#MEMGATE {}\n"
    says = read(
        {"script": script, "comment": 'memgate:{"a": 1}'},
        {"script": script, "comment": "for the paper"},
        {"comment": "memgate:"},
    )

    assert [one["spec"] for one in says] == ['{"a": 1}', " {}", ""]
    assert says[2]["problem"].startswith("it is not a JSON object")


GPUS: list[tuple[dict[str, Any], dict[str, Any] | bool | None]] = [
    ({}, None),
    ({"tres_per_node": "gres:license:2"}, None),
    ({"tres_per_node": "gres:shard:2"}, None),
    ({"tres_per_node": "gres:gpu:0"}, None),
    ({"tres_per_node": "gres:gpu:a100:1"}, {"name": "a100-80", "count": 1}),
    ({"tres_per_node": "gres:gpu:a100:2", "min_nodes": 4}, {"name": "a100-80", "count": 8}),
    ({"tres_per_node": "gres:gpu:a100", "min_nodes": 4294967294}, {"name": "a100-80", "count": 1}),
    ({"tres_per_node": "gres/gpu:a100:2,gres/nic:1"}, {"name": "a100-80", "count": 2}),
    ({"tres_per_node": "gpu:a100=2"}, {"name": "a100-80", "count": 2}),
    ({"tres_per_node": "gres:gpu:a100:2(S:0-1)"}, {"name": "a100-80", "count": 2}),
    ({"tres_per_job": "gres:gpu:t4:3"}, {"name": "t4", "count": 3}),
    ({"tres_per_task": "gres:gpu:t4:1", "num_tasks": 5}, {"name": "t4", "count": 5}),
    ({"tres_per_socket": "gres:gpu:t4:1"}, {"name": "t4", "count": 1}),
    ({"tres_per_node": "gres:gpu:1", "features": "big"}, {"name": "h100-80", "count": 1}),
    ({"tres_per_node": "gres:gpu:1", "partition": "small"}, {"name": "rtx-3060", "count": 1}),
    ({"tres_per_node": "gres:gpu:1", "partition": "small,tiny"}, {"name": "rtx-3060", "count": 1}),
    ({"tres_per_node": "gres:gpu:1", "partition": "small,other"}, False),
    ({"tres_per_node": "gres:gpu:1", "partition": "small,large"}, {"name": "rtx-3060", "count": 1}),
    ({"tres_per_node": "gres:gpu:1", "partition": "small", "features": "[big|new]"}, False),
    ({"tres_per_node": "gres:gpu:v100:1", "partition": "small"}, False),
    ({"tres_per_node": "gres:gpu:2"}, False),
    ({"tres_per_node": "gres:gpu:t4:1,gres:gpu:a100:1"}, False),
    ({"shared": 0, "partition": "small", "min_nodes": 2}, {"name": "rtx-3060", "count": 2}),
    ({"shared": 0, "tres_per_node": "gres:gpu:a100:1"}, {"name": "a100-80", "count": 1}),
    ({"shared": 0}, False),
    ({"shared": 65534}, None),
    ({"tres_per_job": "gres:gpu:a100:1", "tres_per_node": "gres:gpu:t4:1"}, False),
    ({"tres_per_node": "gres:gpu:a100:1", "tres_per_task": "gres:gpu:t4:1"}, False),
    (
        {"tres_per_job": "gres:gpu:t4:4", "tres_per_node": "gres:gpu:t4:2"},
        {"name": "t4", "count": 4},
    ),
    ({"tres_per_node": "gres:gpu:t4:99999999999999999999"}, {"name": "t4", "count": 1 << 20}),
]


@pytest.mark.parametrize("lua", VERSIONS)
def test_the_gpu_is_what_the_job_asks_for(lua: str) -> None:
    """By its kind, else by feature or partition; none is none, and several kinds are not known."""
    says = read(*(job for job, _ in GPUS), lua=lua)

    for said, (job, want) in zip(says, GPUS, strict=True):
        got = said.get("gpu")
        shown = {name: got[name] for name in ("name", "count")} if isinstance(got, dict) else got
        assert shown == want, job
        assert (got is False) == ("why" in said)


LAYOUTS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"tres_per_node": "gres:gpu:t4:8"}, {"count": 8, "per_node": 8}),
    ({"tres_per_node": "gres:gpu:t4:8", "min_nodes": 4}, {"count": 32, "per_node": 8}),
    ({"tres_per_job": "gres:gpu:t4:8"}, {"count": 8}),
    ({"tres_per_job": "gres:gpu:t4:8", "min_nodes": 2}, {"count": 8, "per_node": 4}),
    ({"tres_per_job": "gres:gpu:t4:8", "min_nodes": 3}, {"count": 8}),
    (
        {"tres_per_task": "gres:gpu:t4:2", "num_tasks": 8, "ntasks_per_node": 4},
        {"count": 16, "per_node": 8},
    ),
    ({"tres_per_task": "gres:gpu:t4:1", "num_tasks": 8}, {"count": 8}),
    ({"shared": 0, "partition": "small", "min_nodes": 2}, {}),
]


@pytest.mark.parametrize("lua", VERSIONS)
def test_how_many_gpus_there_are_and_on_a_node_is_asked_about(lua: str) -> None:
    """By --gres, --gpus, --gpus-per-task with --ntasks and --nodes; not where it is not known."""
    said = read(*({"comment": "memgate:{}", **job} for job, _ in LAYOUTS), lua=lua)

    for one, (job, want) in zip(said, LAYOUTS, strict=True):
        asked = json.loads(one["body"])["gpu"]
        assert {name: asked[name] for name in asked if name != "name"} == want, job


def test_a_part_of_a_job_does_not_contradict_the_whole() -> None:
    """Slurm shows one part of a heterogeneous job at a time: the description knows all of them."""
    whole = 'memgate:{"distributed": {"strategy": "ddp", "world_size": 12}}'
    part = {"tres_per_node": "gres:gpu:t4:4", "het_job_offset": 0}
    counted, alone, own = read(
        {"comment": "memgate:{}", **part},
        {"comment": whole, **part},
        {"comment": whole, "tres_per_node": "gres:gpu:t4:4", "het_job_offset": 4294967294},
    )

    asked = [json.loads(one["body"])["gpu"].get("count") for one in (counted, alone, own)]
    assert asked == [4, None, 4]


def test_every_card_that_a_job_may_get_is_asked_about() -> None:
    """Partitions with several kinds of GPU: it may run on any of them."""
    (said,) = read({"tres_per_node": "gres:gpu:1", "partition": "small,tiny,large"})

    assert said["gpu"]["names"] == ["rtx-3060", "a100-80"]


def test_a_gpu_may_be_given_by_its_size() -> None:
    """Of a card that is not in the catalogue, as the API takes it."""
    size = '{"memory_bytes": 25769803776, "compute_capability": "8.6"}'
    job = {"comment": "memgate:{}", "tres_per_node": "gres:gpu:own:2"}
    (said,) = read(job, gpu_of_type={"own": size})

    assert json.loads(said["body"])["gpu"] == json.loads(size) | {"count": 2, "per_node": 2}


def test_the_first_part_of_a_job_is_not_judged_by_anothers_comment() -> None:
    """Slurm 22.05 gives it the comment of a later part; its own lines come first there."""
    script, comment = "#!/bin/sh\n#MEMGATE {}\n", 'memgate:{"a": 1}'
    first, second, bare = read(
        {"script": script, "comment": comment, "het_job_offset": 0},
        {"script": script, "comment": comment, "het_job_offset": 1},
        {"script": "#!/bin/sh\n", "comment": comment, "het_job_offset": 0},
    )

    assert [one["spec"] for one in (first, second, bare)] == [" {}", '{"a": 1}', '{"a": 1}']


NEAR: list[tuple[dict[str, str], str | None]] = [
    (
        {"script": "#!/bin/sh\n#MEMGAT {}\n"},
        '"#MEMGAT {": if it describes the job, write #MEMGATE {',
    ),
    ({"script": "#!/bin/sh\n# MEMGATE {}\n"}, '"# MEMGATE {"'),
    ({"script": "#!/bin/sh\n#memgate {}\n"}, '"#memgate {"'),
    ({"script": "#!/bin/sh\n#MEMGATE: {}\n"}, '"#MEMGATE: {"'),
    ({"script": "#!/bin/sh\n #MEMGATE {}\n"}, '" #MEMGATE {"'),
    ({"script": "#!/bin/sh\n#MEMGATES{}\n"}, '"#MEMGATES{"'),
    ({"comment": "memgat: {}"}, "--comment begins with memgat: if it describes the job"),
    ({"script": "#!/bin/sh\n# MEMGATE is great\n"}, None),
    ({"script": "#!/bin/sh\n# memory {}\n# megabyte {\n"}, None),
    ({"script": "#!/bin/sh\n#MEMGATE {}\n"}, None),
    ({"comment": "paper: {draft}"}, None),
]


@pytest.mark.parametrize("lua", VERSIONS)
def test_a_near_miss_is_told(lua: str) -> None:
    """What looks like a description and is none: otherwise nobody would notice."""
    code = """
    local question, says = require("memgate.question"), {}
    for index, job in ipairs(cjson.decode(io.read("*a"))) do
      says[index] = question.find_near_miss(job) or false
    end
    print(cjson.encode(says))
    """
    says = json.loads(run_lua(code, [job for job, _ in NEAR], lua))

    for said, (job, want) in zip(says, NEAR, strict=True):
        assert (want in said) if want else said is False, job


def test_a_default_gpu_is_for_who_says_no_kind() -> None:
    """Not for a kind that is missing in the map."""
    plain, other = read(
        {"tres_per_node": "gres:gpu:1"}, {"tres_per_node": "gres:gpu:v100:1"}, default_gpu="t4"
    )

    assert plain["gpu"]["name"] == "t4"
    assert other["gpu"] is False


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.text(max_size=5), _json, max_size=4), min_size=1, max_size=20))
def test_a_description_is_passed_on_as_it_was_written(specs: list[dict[str, Any]]) -> None:
    """An empty list stays a list, a large number stays itself, and the GPU is ours."""
    gpu = {"tres_per_node": "gres:gpu:t4:2"}
    says = read(*(gpu | {"comment": f"memgate:{json.dumps(spec)}"} for spec in specs))

    for said, spec in zip(says, specs, strict=True):
        if "problem" in said:  # more than Lua can hold, such as 1e400
            continue
        assert json.loads(said["body"]) == {
            "job": spec,
            "gpu": {"name": "t4", "count": 2, "per_node": 2},
        }


@settings(max_examples=25)
@given(st.lists(st.text(alphabet='{}[]",:#\n\\u0 aMEGT1', max_size=60), min_size=1, max_size=50))
def test_nothing_gets_out_of_its_place_in_the_question(texts: list[str]) -> None:
    """Whatever a user writes, the question has one job and the GPU that Slurm knows of."""
    gpu = {"tres_per_node": "gres:gpu:t4:1"}
    says = read(*(gpu | {"comment": f"memgate:{text}"} for text in texts))

    for said in says:
        if "body" in said:
            body = json.loads(said["body"], object_pairs_hook=list)
            assert [name for name, _ in body] == ["job", "gpu"]
            assert body[1][1] == [("name", "t4"), ("count", 1)]


@pytest.mark.parametrize(
    ("before", "want"),
    [
        (None, {}),
        ("words", {"note": "words"}),
        ("[1]", {"note": "[1]"}),
        ('{"site": {"a": 1}}', {"site": {"a": 1}}),
    ],
)
def test_what_others_wrote_stays(before: str | None, want: dict[str, Any]) -> None:
    """AdminComment is not ours alone; what we wrote is found again."""
    code = """
    local words = require("memgate.words")
    local before = cjson.decode(io.read("*a"))
    local comment = words.record({decision = "admit"}, before ~= cjson.null and before or nil)
    print(cjson.encode({comment = comment, record = words.read_record(comment)}))
    """
    said = json.loads(run_lua(code, before))

    assert json.loads(said["comment"]) == want | {"memgate": {"decision": "admit"}}
    assert said["record"] == {"decision": "admit"}


WRONG: list[tuple[str, str]] = [
    ("return 1", "it must return a table"),
    ("return {", "unexpected symbol"),
    ("return {urls = 1}", "there is no setting urls"),
    ("return {on_error = 'hold'}", "it must be one of admit or reject"),
    ("return {on_uncertain = 'maybe'}", "it must be one of admit, reject or hold"),
    ("return {bound_seconds = 9}", "bound_seconds must be above 0 and at most 0.4"),
    ("return {hold_seconds = 9999}", "hold_seconds must be from 0 to 3600"),
    ("return {gpu_of_type = {a = '{40}'}}", "gpu_of_type has {40}: it is like"),
    ("return {on_undescribed = 'hold'}", "it must be one of admit, reject or rehearse"),
    ("return {on_late = 'rehearse'}", "it must be one of admit or reject"),
    ("return {on_untyped = 'reject'}", "it must be one of admit or right_size"),
    ("return {rehearsal_seconds = 5}", "rehearsal_seconds must be from 30 to 600"),
    ("return {bound_seconds = '1'}", "bound_seconds must be a number"),
    ("return {busy_share = 0}", "busy_share must be above 0 and at most 1"),
    ("return {admins = {0, 'slurm'}}", 'admins has "slurm": they are uids'),
    ("return {gpu_of_type = {a100 = 80}}", 'gpu_of_type has 80: it is like {a100 = "a100-80"}'),
    ("return {url = 'http://memgate.example:8080'}", "with an address, not a name"),
    ("return {url = 'https://127.0.0.1:8080'}", "with an address, not a name"),
    ("return {url = os.getenv('HOME')}", "global 'os'"),
]


@pytest.mark.parametrize("lua", VERSIONS)
@pytest.mark.parametrize(("text", "want"), WRONG, ids=[text[7:35] for text, _ in WRONG])
def test_wrong_settings_are_named(tmp_path: Path, text: str, want: str, lua: str) -> None:
    """And the file of settings is data: it reaches nothing."""
    path = tmp_path / "memgate.conf.lua"
    path.write_text(text)
    code = """
    local is_right, problem = pcall(require("memgate.settings").read, cjson.decode(io.read("*a")))
    print(is_right, problem)
    """
    said = run_lua(code, str(path), lua)

    assert said.startswith("false")
    assert want in said


def test_the_settings_that_are_shipped_are_right() -> None:
    """Copied as they are, they are read; their GPUs are those of the catalogue."""
    code = """
    local found = require("memgate.settings").read(cjson.decode(io.read("*a")))
    print(cjson.encode(found))
    """
    found = json.loads(run_lua(code, str(PLUGINS / "memgate.conf.lua")))

    assert set(found["gpu_of_type"].values()) <= set(CATALOGUE)
    assert found["on_reject"] == "reject"
