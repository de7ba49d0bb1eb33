"""Scripts and answers become a first spec; a script is read, never run."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.first_spec import (
    Findings,
    read_batch,
    read_input,
    read_model,
    read_optimizer,
    read_precision,
    read_script,
)
from memgate.first_spec.source import MAX_SOURCE_LENGTH, read_source
from memgate.jobspec import parse_job_spec

ARGPARSE = """
import argparse, torch
import torchvision.models as models
from torch.utils.data import DataLoader
from torchvision import transforms as T
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--lr")
parser.add_argument("data")
args = parser.parse_args()
torch.backends.cudnn.benchmark = True
model = models.resnet50(num_classes=10).to(memory_format=torch.channels_last)
model = torch.compile(model)
T.RandomResizedCrop(176)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
with torch.autocast("cuda", dtype=torch.bfloat16):
    pass
torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
(lambda: 1)()
"""


def _read(*lines: str) -> Findings:
    return read_script("\n".join(lines))


def test_a_script_with_argparse() -> None:
    """Everything is found, with where it is from; the spec is one of ours."""
    findings = read_script(ARGPARSE)

    assert findings.ordered == {
        "model": {"source": "torchvision", "name": "resnet50", "kwargs": {"num_classes": 10}},
        "input": {"shape": [3, 176, 176]},
        "batch_size": 64,
        "optimizer": {"name": "SGD", "kwargs": {"momentum": 0.9}},
        "precision": "amp-bf16",
        "compile": True,
        "clip_grad_norm": 5.0,
        "cudnn_benchmark": True,
        "channels_last": True,
    }
    assert findings.notes["batch_size"] == "the default of --batch-size, line 7"
    assert findings.is_whole
    parse_job_spec(findings.spec)


@pytest.mark.parametrize(
    "lines",
    [
        ("import click", "@click.option('--batch_size', default=48)", "def f(batch_size): pass"),
        ("from absl import flags", "flags.DEFINE_integer('batch_size', 48, 'help')"),
        ("import typer", "def main(x, batch_size: int = typer.Option(48)): pass"),
        ("@app.command()", "def train(*, x, batch_size: int = 48): pass"),
        ("@dataclass", "class A:", "    x: int", "    batch_size: int = field(default=48)"),
        ("BATCH_SIZE = 48",),
        ("BATCH = 48", "DataLoader(d, batch_size=BATCH)"),
        ("from torch.utils.data import DataLoader", "DataLoader(d, batch_size=48)"),
    ],
    ids=["click", "absl", "typer", "command", "dataclass", "constant", "named", "loader"],
)
def test_a_batch_is_found_where_people_write_it(lines: tuple[str, ...]) -> None:
    """As the default of an option, a constant, or an argument."""
    assert _read(*lines).spec["batch_size"] == 48


@pytest.mark.parametrize(
    "lines",
    [
        ("class A:", "    batch_size: int = 48"),
        ("def helper(batch_size=48): pass",),
        ("parser.add_argument('--batch-size', default=compute())",),
        ("batch_size = compute()",),
        ("flags.DEFINE_integer('batch_size')",),
        ("parser.add_argument('--batch-size', default=0)",),
    ],
)
def test_what_is_not_a_setting_is_not_one(lines: tuple[str, ...]) -> None:
    """Nor is what is computed; then it is said that it was not found."""
    findings = _read(*lines)

    assert "batch_size" in findings.missing
    assert "not found: batch_size; add it, such as batch_size: 32" in findings.comments
    assert not findings.is_whole


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (("import timm", "timm.create_model('vit_tiny')"), {"source": "timm", "name": "vit_tiny"}),
        (
            ("import timm", "timm.create_model(model_name='vit_tiny')"),
            {"source": "timm", "name": "vit_tiny"},
        ),
        (
            ("import torchvision", "torchvision.models.get_model('vgg16')"),
            {"source": "torchvision", "name": "vgg16"},
        ),
        (
            ("AutoModelForCausalLM.from_pretrained('gpt2')",),
            {"source": "transformers", "name": "gpt2"},
        ),
        (
            ("AutoModel.from_pretrained(pretrained_model_name_or_path='gpt2')",),
            {"source": "transformers", "name": "gpt2"},
        ),
        (
            ("from transformers import GPT2LMHeadModel", "GPT2LMHeadModel(config)"),
            {"source": "transformers", "class": "GPT2LMHeadModel"},
        ),
        (
            (
                "parser.add_argument('--model', default='gpt2')",
                "AutoModel.from_pretrained(args.model)",
            ),
            {"source": "transformers", "name": "gpt2"},
        ),
        (
            ("import timm", "p.add_argument('--model', default='x')", "timm.create_model(f())"),
            {"source": "timm", "name": "x"},
        ),
        (("AutoTokenizer.from_pretrained('gpt2')",), None),
        (("AutoModel.from_pretrained(f())",), None),
    ],
)
def test_a_model_is_found_by_its_constructor(
    lines: tuple[str, ...], want: dict[str, Any] | None
) -> None:
    """Of torchvision, timm or transformers, or by the default of an option."""
    assert _read(*lines).spec.get("model") == want


def test_several_models_are_said() -> None:
    """The first is taken."""
    findings = _read(
        "import torchvision",
        "torchvision.models.resnet18()",
        "torchvision.models.vgg16()",
        "torchvision.models.ResNet()",
    )

    assert findings.spec["model"]["name"] == "resnet18"
    assert "not certain: model: the script makes several: resnet18, vgg16" in findings.doubts


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (("MAX_LENGTH = 128",), {"sequence_length": 128}),
        (("tokenizer(text, max_length=256)",), {"sequence_length": 256}),
        (("IMG_SIZE = 96",), {"shape": [3, 96, 96]}),
        (("CenterCrop((32, 48))",), {"shape": [3, 32, 48]}),
        (("CenterCrop(size())",), None),
        (("Resize((1, 2, 3))",), None),
        (("import timm", "timm.create_model('a')", "MAX_LENGTH = 8"), None),
    ],
)
def test_the_size_of_a_sample(lines: tuple[str, ...], want: dict[str, Any] | None) -> None:
    """A length for text, a side or two for images."""
    assert _read(*lines).spec.get("input") == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("torch.cuda.amp.autocast()", "amp-fp16"),
        ("model.half()", "fp16"),
        ("model.bfloat16()", "bf16"),
        ("AutoModel.from_pretrained('a', torch_dtype=torch.bfloat16)", "bf16"),
        ("model.to(torch.float16)", "fp16"),
        ("half()", None),
    ],
)
def test_precision_is_found_by_what_makes_it(line: str, want: str | None) -> None:
    """Autocast, or narrow weights."""
    findings = _read("import torch", line)

    assert findings.spec.get("precision") == want
    assert (want is None) == any("precision: fp32" in one for one in findings.remarks)


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (("from torch import optim", "optim.AdamW(p, fused=True)"), "AdamW"),
        (("import bitsandbytes as bnb", "bnb.optim.AdamW8bit(p)"), "bitsandbytes.AdamW8bit"),
        (("from torchao.optim import AdamW8bit", "AdamW8bit(p)"), "torchao.AdamW8bit"),
        (("import torch", "torch.optim.lr_scheduler.step()"), None),
    ],
)
def test_an_optimizer_is_found_by_its_class(lines: tuple[str, ...], want: str | None) -> None:
    """Of torch, bitsandbytes and torchao; without one, SGD is what a spec means."""
    findings = _read(*lines)

    assert findings.spec.get("optimizer", {}).get("name") == want
    assert (want is None) == any("optimizer" in doubt for doubt in findings.doubts)


def test_an_adapter_on_quantised_weights() -> None:
    """peft's and bitsandbytes' configurations."""
    findings = _read(
        "LoraConfig(r=8, target_modules=['q_proj'], use_dora=True, lora_alpha=f(),"
        " lora_dropout=g())",
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4',"
        " bnb_4bit_use_double_quant=True)",
        "model.gradient_checkpointing_enable()",
        "clip_grad_norm_(p)",
        "GRAD_ACCUM = 4",
    )

    assert findings.spec["lora"] == {"method": "dora", "rank": 8, "target_modules": ["q_proj"]}
    assert findings.spec["quantization"] == {"method": "nf4", "double": True}
    assert findings.spec["gradient_checkpointing"] is True
    assert findings.spec["clip_grad_norm"] == 1.0
    assert findings.spec["gradient_accumulation_steps"] == 4
    assert "not certain: lora_dropout of LoraConfig(...) in line 1 is computed" in findings.doubts


def test_what_else_an_adapter_takes_is_kept() -> None:
    """Modules that are trained whole would be missing otherwise."""
    findings = _read("LoraConfig(r=8, modules_to_save=['lm_head'], task_type='CAUSAL_LM')")

    assert findings.spec["lora"] == {"rank": 8, "kwargs": {"modules_to_save": ["lm_head"]}}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("AutoModelForSequenceClassification.from_pretrained('bert')", "another head"),
        ("import lightning as L\nL.Trainer(precision='16-mixed')", "Lightning's Trainer in line 2"),
        ("model.generate(x)", "text is generated in line 1"),
    ],
)
def test_what_is_not_read_is_said(line: str, want: str) -> None:
    """The spec would be that of another job."""
    findings = _read(line)

    assert want in " ".join(findings.doubts)
    assert not findings.is_whole


def test_usual_heads_and_functions_are_not_doubted() -> None:
    """A name of a language model is one; a function of that name generates anything."""
    findings = _read("AutoModelForCausalLM.from_pretrained('gpt2')", "generate(x)")

    assert not [one for one in findings.doubts if "head" in one or "generated" in one]


def test_attention_and_averages_are_found() -> None:
    """One call says all of it; attention that a spec does not have stays out."""
    line = "AutoModelForCausalLM.from_pretrained('gpt2', attn_implementation='{}')"
    flash = _read(line.format("flash_attention_2"), "AveragedModel(model)")

    assert (flash.spec["attention"], flash.spec["ema"]) == ("flash", True)
    assert "attention" not in _read(line.format("paged")).spec


def test_eight_bits_are_int8() -> None:
    """And an adapter without arguments is one."""
    findings = _read("LoraConfig()", "BitsAndBytesConfig(load_in_8bit=True)")

    assert findings.spec["lora"] == {}
    assert findings.spec["quantization"] == {"method": "int8"}


TRAINER = (
    "from transformers import AutoModelForCausalLM, TrainingArguments, Trainer",
    "AutoModelForCausalLM.from_pretrained('gpt2')",
    "TrainingArguments('out', per_device_train_batch_size=2, bf16=True, max_steps=n(), tf32=t())",
)


def test_the_arguments_of_a_trainer_are_those_of_a_config() -> None:
    """``convert`` reads them; what is computed and can matter is said."""
    findings = _read(*TRAINER, "MAX_SEQ_LEN = 256")

    assert findings.spec["batch_size"] == 2
    assert findings.spec["precision"] == "amp-bf16"
    assert findings.spec["trainer"] == "hf"
    assert findings.spec["input"] == {"sequence_length": 256}
    assert "not certain: tf32 of TrainingArguments(...) in line 3 is computed" in findings.doubts
    assert not any("max_steps" in doubt for doubt in findings.doubts)
    parse_job_spec(findings.spec)


def test_a_length_that_is_not_there_is_not_made_up() -> None:
    """The rest of the arguments is read all the same."""
    assert _read(*TRAINER).missing == ["input"]


def test_arguments_that_are_wrong_are_said() -> None:
    """And the script is read as any other."""
    findings = _read("TrainingArguments(bf16='maybe')", "BATCH_SIZE = 3")

    assert findings.spec["batch_size"] == 3
    assert any("it must be true or false" in doubt for doubt in findings.doubts)


EXAMPLE = (
    "import argparse",
    "from transformers import AutoModelForSequenceClassification, HfArgumentParser, Trainer",
    "from transformers import TrainingArguments",
    "p = argparse.ArgumentParser()",
    "p.add_argument('--max-length', default=384)",
    "m, t = HfArgumentParser((M, TrainingArguments)).parse_args_into_dataclasses()",
    "model = AutoModelForSequenceClassification.from_pretrained('roberta-large')",
)


def test_a_trainer_has_its_own_defaults() -> None:
    """As in transformers' examples, whose settings come from a command line."""
    findings = _read(*EXAMPLE, "Trainer(model, t).train()")

    assert findings.spec["model"] == {
        "source": "transformers",
        "name": "roberta-large",
        "class": "AutoModelForSequenceClassification",
    }
    assert findings.spec["trainer"] == "hf"
    assert findings.spec["batch_size"] == 8
    assert findings.spec["optimizer"]["name"] == "AdamW"
    assert findings.spec["input"] == {"sequence_length": 384}
    assert findings.notes["input"] == "the default of --max-length, line 5"
    assert not any("SGD" in doubt or "another head" in doubt for doubt in findings.doubts)
    assert any("memgate init CONFIG" in doubt for doubt in findings.doubts)
    parse_job_spec(findings.spec)


def test_a_trainer_in_another_file_is_known_by_its_arguments() -> None:
    """The script parses them, whoever trains."""
    assert _read(*EXAMPLE).spec["trainer"] == "hf"
    assert "trainer" not in _read("HfArgumentParser(A)").spec


def test_a_dataclass_of_the_script_has_defaults_of_its_own() -> None:
    """They go before those of the Trainer."""
    lines = (
        "@dataclass",
        "class T(TrainingArguments):",
        "    per_device_train_batch_size: int = 3",
    )

    assert _read(*EXAMPLE, *lines).spec["batch_size"] == 3


@pytest.mark.parametrize(
    "line",
    [
        "SFTTrainer('gpt2', args=SFTConfig(max_length=512))",
        "SFTTrainer(model='gpt2', args=TrainingArguments('out'), train_dataset=d)",
    ],
)
def test_trl_trains_with_its_own_defaults(line: str) -> None:
    """Whichever class has the arguments; it loads a model by its name itself."""
    findings = _read("from trl import SFTConfig, SFTTrainer", line)

    assert findings.spec["trainer"] == "trl-sft"
    assert findings.spec["model"] == {"source": "transformers", "name": "gpt2"}
    assert findings.spec["batch_size"] == 8
    assert findings.spec["input"]["sequence_length"] in (512, 1024)
    parse_job_spec(findings.spec)


@pytest.mark.parametrize(
    ("line", "is_doubted"),
    [("Trainer(m, t)", True), ("Trainer(model=m, args=t)", True), ("Trainer(m)", False)],
)
def test_arguments_that_are_made_elsewhere_are_said(line: str, *, is_doubted: bool) -> None:
    """Without any, the defaults are what it trains with."""
    findings = _read("from transformers import Trainer", line)

    assert findings.spec["trainer"] == "hf"
    assert any("made elsewhere" in doubt for doubt in findings.doubts) is is_doubted


def test_the_head_of_a_model_that_an_option_names() -> None:
    """The class is that of the one call that loads it; of several, none is chosen."""
    name = "parser.add_argument('--model_name_or_path', default='bert-base-uncased')"
    load = "transformers.AutoModelFor{}.from_pretrained(args.other())"

    one = _read(name, load.format("TokenClassification"))
    two = _read(name, load.format("TokenClassification"), load.format("QuestionAnswering"))

    assert one.spec["model"]["class"] == "AutoModelForTokenClassification"
    assert not any("another head" in doubt for doubt in one.doubts)
    assert "class" not in two.spec["model"]
    assert any("beside 'name'" in doubt for doubt in two.doubts)


def test_settings_from_elsewhere_are_said() -> None:
    """A config that the script reads can be converted itself."""
    (doubt, *_) = _read("HfArgumentParser(A)", "SFTConfig()").doubts

    assert "memgate init CONFIG" in doubt


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def f(:", "this is not Python: .* in line 1"),
        ("x = 1\0", "this is not Python"),
        ("#" * (MAX_SOURCE_LENGTH + 1), "a script may have"),
    ],
)
def test_what_is_not_a_script_is_refused(text: str, rule: str) -> None:
    """With the line, if there is one."""
    with pytest.raises(InputError, match=rule):
        read_script(text)


def test_nothing_is_executed() -> None:
    """A script may do anything; reading it does nothing."""
    source = read_source("raise SystemExit\nimport os.path\nos.system('ls').x.y = 1\nf()()")

    assert [call.name for call in source.calls] == ["os.system", "f"]
    assert source.called("system") is source.calls[0]


class TestAnswers:
    """Answers to the five questions."""

    def test_a_model_is_of_a_library_or_public(self) -> None:
        """As it is written, or as the table has it."""
        assert read_model("timm:vit", str) == {"source": "timm", "name": "vit"}
        assert read_model(" GPT2 ", str.lower) == {"source": "transformers", "name": "gpt2"}

    @pytest.mark.parametrize(
        ("text", "source", "want"),
        [
            ("512", "transformers", {"sequence_length": 512}),
            ("224", "timm", {"shape": [3, 224, 224]}),
            ("3 x 32, 48", "torchvision", {"shape": [3, 32, 48]}),
        ],
    )
    def test_a_size(self, text: str, source: str, want: dict[str, Any]) -> None:
        """A number means what the model takes."""
        assert read_input(text, source) == want

    def test_the_others(self) -> None:
        """In any case, where there is no other."""
        assert read_batch("16") == 16
        assert read_optimizer("adamw") == {"name": "AdamW"}
        assert read_precision("BF16") == "bf16"

    def test_wrong_answers_are_refused(self) -> None:
        """With the rule, and similar names."""
        with pytest.raises(InputError, match="a shape such as 3x224x224"):
            read_input("large", "timm")
        with pytest.raises(InputError, match="a whole number from 1 on"):
            read_batch("0")
        with pytest.raises(InputError, match="did you mean 'AdamW'"):
            read_optimizer("AdmaW")
        with pytest.raises(InputError, match="did you mean 'amp-bf16'"):
            read_precision("ampbf16")
