"""What the plugin in ``sbatch`` itself does: it runs in plain Lua, with a server that is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.slurm.test_lua import PLUGINS, pytestmark, run_lua

__all__ = ["pytestmark"]

_SUBMIT = """
local given = cjson.decode(io.read("*a"))
local num_asked = 0
slurm = { SUCCESS = 0, log_debug = function(_, text) io.stderr:write(text) end }
package.loaded["memgate.http"] = {
  now = function() return 1700000000.25 end,
  post = function() num_asked = num_asked + 1 return nil, "refused" end,
}
dofile(given.plugin)
assert(slurm_cli_pre_submit(given.options, 0) == 0)
print(num_asked)
"""

_TRIAL = {"mode": "audit", "rules": [{"account": "lab7", "mode": "enforce"}]}


@pytest.mark.parametrize(
    ("policy", "options", "want"),
    [
        ({"mode": "enforce"}, {}, 1),
        ({"mode": "audit"}, {}, 0),
        (_TRIAL, {"account": "lab7"}, 1),
        (_TRIAL, {"account": "lab8"}, 0),
        # the default account is filled in by slurmctld
        (_TRIAL, {}, 1),
        ({"mode": "audit", "rules": [{"partition": "gpu", "mode": "warn"}]}, {}, 1),
        ({"mode": "audit", "rules": [{"qos": "paying", "mode": "audit"}]}, {}, 0),
        ({"exempt": [{"account": "ops"}]}, {"account": "ops"}, 0),
    ],
    ids=[
        *("enforce", "audit", "its account", "another account", "an account that is filled in"),
        *("a partition that is filled in", "audit everywhere", "exempt"),
    ],
)
def test_the_client_waits_where_anybody_may_be_told(
    tmp_path: Path, policy: dict[str, Any], options: dict[str, str], want: int
) -> None:
    """And asks nothing where the policy can only record."""
    (tmp_path / "cli_filter.lua").write_text((PLUGINS / "cli_filter.lua").read_text())
    (tmp_path / "memgate.conf.lua").write_text('return {gpu_of_type = {t4 = "t4"}}')
    (tmp_path / "memgate.policy.json").write_text(json.dumps(policy))
    job = {"type": "srun", "gres": "gres:gpu:t4:1", "comment": 'memgate:{"a": 1}'}

    given = {"plugin": str(tmp_path / "cli_filter.lua"), "options": job | options}

    assert int(run_lua(_SUBMIT, given)) == want
