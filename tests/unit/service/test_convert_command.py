"""``memgate convert``: files in, a spec out, and what is not in it on standard error."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIG = """\
base_model: meta-llama/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 2
bf16: true
flash_attention: true
optimizer: adamw_torch
learning_rate: 2e-4
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a config of axolotl that a spec can say whole."""
    path = tmp_path / "config.yml"
    path.write_text(CONFIG)
    return path


def test_a_config_becomes_a_spec(run: Any, config: Path) -> None:
    """On standard output alone, so that it can be piped; exit 0, since nothing is missing."""
    ran = run("convert", config)

    assert ran.status == 0
    assert yaml.safe_load(ran.out)["precision"] == "bf16"
    assert ran.err.strip().endswith(
        "7 fields: 6 used, 1 cannot matter, 0 can matter and are not used"
    )


def test_what_can_matter_is_said_and_is_status_4(run: Any, config: Path) -> None:
    """To people on standard error, and in the file as comments."""
    config.write_text(f"{CONFIG}tiled_mlp: true\n")

    ran = run("convert", config)

    assert ran.status == 4
    assert "not in this spec: tiled_mlp is true: layers are computed in pieces" in ran.err
    assert "# not in this spec: tiled_mlp" in ran.out
    assert "1 can matter and is not used" in ran.err


def test_json_has_every_field(run: Any, config: Path) -> None:
    """With what became of it."""
    ran = run("convert", config, "--json")
    document = json.loads(ran.out)

    assert (document["kind"], document["is_whole"]) == ("axolotl", True)
    assert {"name": "learning_rate", "use": "cannot_matter", "value": "", "note": ""} in (
        document["fields"]
    )
    assert document["spec"]["batch_size"] == 2
    assert ran.err == ""


@pytest.mark.parametrize("name", ["job.yaml", "job.json"])
def test_a_spec_goes_into_a_new_file(run: Any, config: Path, name: str) -> None:
    """YAML, or JSON by its name; what is there is never overwritten."""
    output = config.with_name(name)

    assert run("convert", config, "-o", output).out == ""
    assert yaml.safe_load(output.read_text())["batch_size"] == 2
    again = run("convert", config, "-o", output)
    assert again.status == 2
    assert "the file is there already" in again.err


def test_a_folder_that_is_not_there_is_said_first(run: Any, config: Path) -> None:
    """Before anything is read."""
    ran = run("convert", config, "-o", config.parent / "no" / "job.yaml")

    assert ran.status == 2
    assert "there is no such folder" in ran.err


def test_a_model_without_a_public_name_is_said(run: Any, config: Path) -> None:
    """With similar names and what to do; the name stays."""
    ran = run("convert", config, "--model", "meta-llama/Llama-3.2-1BB")

    assert ran.status == 4
    assert "did you mean 'meta-llama/Llama-3.2-1B'" in ran.err
    assert "config.json" in ran.err
    assert yaml.safe_load(ran.out)["model"]["name"] == "meta-llama/Llama-3.2-1BB"


def test_a_deepspeed_file_is_found_beside_the_config(run: Any, config: Path) -> None:
    """As the config names it, or as it is given."""
    (config.parent / "zero.json").write_text('{"zero_optimization": {"stage": 1}}')
    config.write_text(f"{CONFIG}deepspeed: zero.json\n")

    ran = run("convert", config, "--world-size", "4")
    assert yaml.safe_load(ran.out)["distributed"] == {"strategy": "zero1", "world_size": 4}
    assert ran.status == 4
    assert "PyTorch's own division stands for DeepSpeed's" in ran.err

    config.write_text(CONFIG)
    ran = run("convert", config, "--deepspeed", config.parent / "zero.json")
    assert ran.status == 4
    assert "add --world-size N" in ran.err


def test_a_wrong_deepspeed_file_is_named(run: Any, config: Path) -> None:
    """It is an object, too."""
    wrong = config.with_name("zero.json")
    wrong.write_text("[1]")

    ran = run("convert", config, "--deepspeed", wrong)

    assert ran.status == 2
    assert "zero.json: a DeepSpeed file is an object" in ran.err


def test_a_config_may_come_out_of_a_pipe(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CONFIG.encode())))

    assert run("convert", "-").status == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: &a [1]\nb: *a", "aliases are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "neither JSON nor YAML"),
        ("[" * 1200, "neither JSON nor YAML|nested|recursion"),
        ("a: " + "x" * 20_000, "as YAML a config may have 16384 characters"),
        ('{"a": "' + "x" * 300_000 + '"}', "a config may have 262144 characters"),
        ("rl: dpo\nbase_model: gpt2\n", "rl is dpo"),
        ("\xff", "no tool's config|an object with named fields"),
    ],
    ids=["aliases", "objects", "depth", "long YAML", "long JSON", "another task", "no config"],
)
def test_hostile_and_wrong_files_are_refused(run: Any, config: Path, text: str, rule: str) -> None:
    """Nothing is executed, and nothing grows."""
    config.write_text(text)
    ran = run("convert", config)

    assert ran.status in (1, 2)
    assert re.search(rule, ran.err), ran.err
    assert ran.out == ""


def test_a_device_is_not_a_config(run: Any) -> None:
    """It may never end."""
    ran = run("convert", "/dev/zero")

    assert ran.status == 2
    assert "this is a device, not a file" in ran.err
