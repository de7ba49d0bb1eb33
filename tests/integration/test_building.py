"""Models and optimizers as jobs ask for them: what is built and what is refused, by runtime."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from memgate_worker.jobs.public import PublicModel, list_public_models
from memgate_worker.runtimes.runtime import read_runtimes
from tests.conftest import DATA
from tests.integration.building import Builder

RUNTIMES = read_runtimes()
PUBLISHED: dict[str, Any] = json.loads((DATA / "published_configs.json").read_text())
GPT2_JSON: dict[str, Any] = PUBLISHED["openai-community/gpt2-medium"]["config"]


@pytest.fixture(scope="module", params=sorted(RUNTIMES))
def builder(request: pytest.FixtureRequest) -> Iterator[Builder]:
    """A process of each runtime that is built."""
    runtime = RUNTIMES[request.param]
    if not runtime.is_installed:
        pytest.skip(f"runtime {runtime.name} is not built: make runtime RUNTIME={runtime.name}")
    with Builder(runtime) as builder:
        yield builder


@pytest.mark.parametrize(
    ("name", "config", "key", "near"),
    [
        ("GPT2LMHeadModel", {"n_layers": 96}, "n_layers", "n_layer"),
        ("LlamaForCausalLM", {"num_layers": 2}, "num_layers", "num_hidden_layers"),
        ("BertForMaskedLM", {"hidden_dropout": 0.1}, "hidden_dropout", "hidden_dropout_prob"),
        ("CLIPModel", {"text_config": {"num_layers": 2}}, "text_config.num_layers", "num_hidden_"),
        ("CLIPModel", {"vision_config": {"patchsize": 2}}, "vision_config.patchsize", "patch_size"),
        ("GPT2LMHeadModel", GPT2_JSON | {"n_layers": 96}, "n_layers", "n_layer"),
        ("GPT2LMHeadModel", GPT2_JSON | {"num_layers": 96}, "num_layers", "n_layer"),
    ],
    ids=["gpt2", "llama", "bert", "text", "vision", "published", "published-size"],
)
def test_an_unknown_key_of_a_configuration_is_refused(
    builder: Builder, name: str, config: dict[str, Any], key: str, near: str
) -> None:
    """transformers ignores it, and the answer would be for another model, a fifth as large."""
    built = builder.build("transformers", name, config)

    assert built.fault == "caller"
    assert f"model.config.{key} is " in built.message
    assert "the configuration has no such key; did you mean " in built.message
    assert built.near[0].startswith(near)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_taken_as_it_is(builder: Builder, name: str) -> None:
    """With its marks, its generation settings, and keys that nothing reads any more."""
    entry = PUBLISHED[name]

    assert builder.ask(**{"class": entry["class"], "config": entry["config"]}).message == ""


@pytest.mark.parametrize(
    "name", [name for name, entry in PUBLISHED.items() if "architectures" in entry["config"]]
)
def test_a_whole_config_json_needs_no_class(builder: Builder, name: str) -> None:
    """It is built as with the class, by the one that it names itself."""
    entry = PUBLISHED[name]
    model = {"source": "transformers", "config": entry["config"]}

    whole = builder.ask(count=model)
    named = builder.ask(count=model | {"class": entry["class"]})

    assert (whole.message, whole.parameters) == ("", named.parameters)


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"architectures": ["NoSuchForCausalLM"]}, "transformers has no such class"),
        (
            {"architectures": ["NoSuchForCausalLM"], "auto_map": {"AutoModel": "x.Y"}},
            "transformers has no such class, and code that is published with a model is never",
        ),
        (
            {"architectures": ["BertModel"]},
            "add 'class' beside 'config', such as BertForMaskedLM",
        ),
    ],
    ids=["unknown", "own-code", "without-loss"],
)
def test_a_config_json_of_no_trainable_class_is_refused(
    builder: Builder, config: dict[str, Any], want: str
) -> None:
    """With the field that names it, and what to do."""
    built = builder.ask(model={"source": "transformers", "config": config})

    assert built.fault == "caller"
    assert "model.config.architectures is " in built.message
    assert want in built.message


def _find_wrong(builder: Builder, models: Iterable[PublicModel]) -> list[str]:
    """Build public models without memory; return what is wrong with each."""
    wrong = []
    for model in models:
        built = builder.ask(count={"source": model.source, "name": model.name})
        published = model.num_parameters or built.parameters
        if built.parameters is None or published is None:
            if "transformers has no such class" not in built.message:  # newer than this runtime's
                wrong.append(f"{model.name}: {built.message}")
        elif abs(built.parameters / published - 1) > 0.02:
            wrong.append(f"{model.name}: {built.parameters:,} instead of {published:,}")
    return wrong


def test_the_first_of_each_public_family_is_what_was_published(builder: Builder) -> None:
    """No unknown key, and the published number of parameters within 2 %."""
    first = {model.family: model for model in reversed(list_public_models())}

    assert _find_wrong(builder, first.values()) == []


@pytest.mark.slow
def test_every_public_model_is_what_was_published(builder: Builder) -> None:
    """All of the table; run it after a change there."""
    entries = [model for model in list_public_models() if model.name == model.entry]

    assert _find_wrong(builder, entries) == []


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("gpt2", 124_439_808),
        ("GPT2", 124_439_808),
        ("llama-3.1-8b", 8_030_261_248),
        ("google/flan-t5-small", 76_961_152),
    ],
)
def test_a_public_model_is_found_by_its_short_name(builder: Builder, name: str, want: int) -> None:
    """In any case; the head of a T5 that has one is its own."""
    built = builder.ask(count={"source": "transformers", "name": name})

    assert (built.message, built.parameters) == ("", want)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"class": "RobertaForSequenceClassification"}, 355_361_794),
        ({"class": "AutoModelForSequenceClassification", "config": {"num_labels": 3}}, 355_362_819),
        ({"config": {"architectures": ["RobertaForTokenClassification"]}}, 354_312_194),
    ],
    ids=["class", "auto", "architectures"],
)
def test_a_class_beside_a_name_is_another_head(
    builder: Builder, given: dict[str, Any], want: int
) -> None:
    """The name gives the sizes, the class what is trained: it is never dropped in silence."""
    built = builder.ask(count={"source": "transformers", "name": "roberta-large", **given})

    assert (built.message, built.parameters) == ("", want)


def test_a_class_of_another_family_is_refused(builder: Builder) -> None:
    """With the classes that there are for the model."""
    given = {"source": "transformers", "name": "roberta-large", "class": "GPT2LMHeadModel"}

    message = builder.ask(count=given).message

    assert (
        "model.class is 'GPT2LMHeadModel': it is not a class for FacebookAI/roberta-large"
        in message
    )
    assert "RobertaForQuestionAnswering" in message


def test_what_is_published_flat_reaches_the_text_part(builder: Builder) -> None:
    """Half the layers, far fewer parameters; a key that nothing takes is still refused."""
    small = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 1000}
    model = {"source": "transformers", "class": "Qwen2VLForConditionalGeneration"}

    built = builder.ask(count=model | {"config": small})
    refused = builder.ask(count=model | {"config": small | {"num_layer": 2}})

    assert built.message == ""
    assert built.parameters is not None
    assert built.parameters < 800_000_000  # nearly all of it what sees the images
    assert "model.config.num_layer is 2" in refused.message


@pytest.mark.parametrize(
    "config",
    [
        {"n_layer": 1},
        {"num_hidden_layers": 1, "hidden_size": 768},
        {"n_layer": 1, "attn_implementation": "eager", "num_labels": 3, "use_cache": False},
        {"n_layer": 1, "torch_dtype": "bfloat16"},
        {"n_layer": 1, "dtype": "float16", "pad_token_id": 0, "image_token_id": 3},
    ],
)
def test_a_right_configuration_is_built(builder: Builder, config: dict[str, Any]) -> None:
    """Its weights have the type that the job's precision says, not that they were stored in."""
    built = builder.build("transformers", "GPT2LMHeadModel", config)

    assert (built.message, built.parameters, built.dtype) == ("", 46_473_216, "torch.float32")


@pytest.mark.parametrize(
    ("name", "config", "fault", "want"),
    [
        (
            "LlamaForCausalLM",
            {"quantization_config": {"bits": 4}},
            "unsupported",
            "cannot run quan",
        ),
        ("LlamaForCausalLM", {"model_type": "gpt2"}, "caller", "of the type 'llama'"),
        ("GPT2LMHeadModel", {"gradient_checkpointing": True}, "caller", "beside 'model'"),
        ("GPT2LMHeadModel", {"n_layer": "12"}, "caller", "cannot build it from {'n_layer': '12'}"),
        ("GPT2LMHeadModel", {"n_head": 7}, "caller", "must be divisible"),
        ("DbrxForCausalLM", {}, "unsupported", "with the configuration that it has by default"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    builder: Builder, name: str, config: dict[str, Any], fault: str, want: str
) -> None:
    """Of another model, of quantized weights, or with values that the library refuses.

    A default that the library refuses is not the caller's.
    """
    built = builder.build("transformers", name, config)

    assert built.fault == fault
    assert want in built.message


@pytest.mark.parametrize(
    ("name", "want", "near"),
    [
        ("GPT2LMHeadModle", "transformers has no such class", "GPT2LMHeadModel"),
        ("LlamaForCasualLM", "transformers has no such class", "LlamaForCausalLM"),
        ("GPT2Model", "has no loss of its own", "GPT2LMHeadModel"),
        ("BertPreTrainedModel", "has no loss of its own", "BertForMaskedLM"),
        ("AutoModelForCasualLM", "it stands for the class that 'architectures'", None),
        ("GPT2Config", "it is not a model", None),
        ("Trainer", "it is not a model", None),
        ("os", "transformers has no such class", None),
        ("models.gpt2", "transformers has no such class", None),
        ("__class__", "transformers has no such class", None),
    ],
)
def test_a_class_that_cannot_be_trained_is_refused(
    builder: Builder, name: str, want: str, near: str | None
) -> None:
    """With the ones that were meant."""
    built = builder.build("transformers", name)

    assert built.fault == "caller"
    assert f"model.class is {name!r}: " in built.message
    assert want in built.message
    assert near is None or near in built.near


@pytest.mark.parametrize(
    ("name", "config", "want"),
    [
        ("AutoModelForCausalLM", {"model_type": "gpt2", "n_layer": 2}, None),
        ("AutoModelForMaskedLM", {"model_type": "bert", "num_hidden_layers": 1}, None),
        ("AutoModelForCausalLM", {"n_layer": 2}, "model.config.model_type is missing"),
        ("AutoModelForMaskedLM", {"model_type": "berd"}, "did you mean 'bert'"),
        ("AutoModelForMaskedLM", {"model_type": "vit"}, "AutoModelForMaskedLM has no class for it"),
        ("AutoModel", {"model_type": "gpt2"}, "'GPT2Model': it has no loss of its own"),
        ("AutoModelForCausalLM", {"model_type": "gpt2", "n_layers": 2}, "did you mean 'n_layer'"),
    ],
)
def test_a_class_is_chosen_by_the_type_of_its_configuration(
    builder: Builder, name: str, config: dict[str, Any], want: str | None
) -> None:
    """As scripts do; what they cannot choose by is named."""
    built = builder.build("transformers", name, config)

    assert built.is_right is (want is None), built.message
    assert want is None or want in built.message


@pytest.mark.parametrize(
    ("source", "name", "near"),
    [
        ("torchvision", "resnet5O", "resnet50"),
        ("timm", "resnet5O", "resnet50"),
        ("timm", "vit_base_patch16_244", "vit_base_patch16_224"),
        ("transformers", "gpt-2", "openai-community/gpt2"),
        ("transformers", "llama2-7b", "meta-llama/Llama-2-7b-hf"),
    ],
)
def test_an_unknown_model_has_a_near_name(
    builder: Builder, source: str, name: str, near: str
) -> None:
    """Out of what the library has, or of our table."""
    built = builder.ask(model={"source": source, "name": name})

    assert built.fault == "caller"
    assert f"model.name is {name!r}: " in built.message
    assert near in built.near


@pytest.mark.parametrize(
    ("source", "name", "wrong", "near"),
    [
        ("torchvision", "resnet18", {"num_clases": 10}, "num_classes"),
        ("torchvision", "fcn_resnet50", {"aux_los": True}, "aux_loss"),
        ("torchvision", "convnext_tiny", {"layer_scales": 1e-6}, "layer_scale"),
        ("torchvision", "mobilenet_v3_small", {"width_multi": 0.5}, "width_mult"),
        ("torchvision", "fasterrcnn_resnet50_fpn", {"minsize": 300}, "min_size"),
        ("torchvision", "ssd300_vgg16", {"topk_candidate": 3}, "topk_candidates"),
        ("timm", "resnet18", {"num_clases": 10}, "num_classes"),
        ("timm", "swin_tiny_patch4_window7_224", {"windowsize": 8}, "window_size"),
        ("timm", "swinv2_tiny_window8_256", {"imgsize": 128}, "img_size"),
        ("timm", "naflexvit_base_patch16_gap", {"depths": 2}, "depth"),
        ("timm", "hrnet_w18_small", {"stem_widths": 32}, "stem_width"),
        ("timm", "nfnet_f0", {"act_layers": "relu"}, "act_layer"),
        ("timm", "vovnet39a", {"stem_ch": [32, 32, 64]}, "stem_chs"),
    ],
)
def test_an_argument_that_would_be_ignored_is_refused(
    builder: Builder, source: str, name: str, wrong: dict[str, Any], near: str
) -> None:
    """Whether the constructor checks its arguments itself, or takes any."""
    built = builder.build(source, name, wrong)

    (key,) = wrong
    assert built.fault == "caller"
    assert f"model.kwargs.{key} is " in built.message
    assert f"{name} takes no such argument; did you mean " in built.message
    assert near in built.near


@pytest.mark.parametrize(
    ("source", "name", "kwargs"),
    [
        ("torchvision", "resnet18", {"num_classes": 10, "zero_init_residual": True}),
        ("torchvision", "ResNet18", {"weights": None, "pretrained": False}),
        ("torchvision", "fcn_resnet50", {"aux_loss": True, "num_classes": 3}),
        ("torchvision", "mobilenet_v3_small", {"width_mult": 0.5, "reduced_tail": True}),
        ("torchvision", "convnext_tiny", {"stochastic_depth_prob": 0.2, "layer_scale": 1e-5}),
        ("torchvision", "vit_b_32", {"image_size": 64, "attention_dropout": 0.1}),
        ("torchvision", "regnet_y_400mf", {"num_classes": 3}),
        ("torchvision", "googlenet", {"aux_logits": False, "init_weights": False}),
        ("torchvision", "fasterrcnn_resnet50_fpn", {"min_size": 300, "num_classes": 3}),
        ("torchvision", "swin_t", {"dropout": 0.1}),
        ("timm", "resnet18.a1_in1k", {"num_classes": 0, "in_chans": 1, "drop_path_rate": 0.1}),
        ("timm", "resnet18", {"pretrained": False, "scriptable": True, "global_pool": "avg"}),
        ("timm", "swin_tiny_patch4_window7_224", {"img_size": 256, "window_size": 8}),
        (
            "timm",
            "vit_tiny_patch16_224",
            {"img_size": 64, "class_token": False, "global_pool": "avg"},
        ),
        ("timm", "efficientnet_b0", {"features_only": True, "out_indices": [1, 2]}),
        ("timm", "efficientnet_b0", {"drop_connect_rate": None, "bn_eps": 1e-3}),
        ("timm", "nfnet_f0", {"act_layer": "relu"}),
        ("timm", "hrnet_w18_small", {"stem_width": 32}),
        ("timm", "naflexvit_base_patch16_gap", {"depth": 1}),
        ("timm", "vovnet39a", {"stem_chs": [32, 32, 64]}),
        ("timm", "caformer_s18", {"num_classes": 3, "drop_rate": 0.1}),
        ("timm", "convnext_atto", {"depths": [1, 1, 1, 1], "use_grn": True}),
    ],
)
def test_an_argument_that_is_used_is_taken(
    builder: Builder, source: str, name: str, kwargs: dict[str, Any]
) -> None:
    """Those of the class, of the builder, and of timm's own factory."""
    built = builder.build(source, name, kwargs)

    assert built.message == ""
    assert built.parameters


_WRAPPER = "TimmWrapperForImageClassification"
_SECRET = str(DATA / "published_configs.json")


@pytest.mark.parametrize(
    ("source", "name", "given"),
    [
        ("torchvision", "resnet18", {"weights": "DEFAULT"}),
        ("torchvision", "resnet18", {"pretrained": True}),
        ("torchvision", "fcn_resnet50", {"weights_backbone": "DEFAULT"}),
        ("torchvision", "fcn_resnet50", {"pretrained_backbone": True}),
        ("timm", "resnet18", {"pretrained": True}),
        ("timm", "resnet18", {"checkpoint_path": _SECRET}),
        ("timm", "resnet18", {"pretrained_cfg": {"file": _SECRET}}),
        ("timm", "resnet18", {"pretrained_cfg_overlay": {"url": "https://example.org/x"}}),
        ("timm", f"local-dir:{DATA}", {}),
        ("timm", "hf-hub:timm/resnet18", {}),
        ("timm", "hf_hub:timm/resnet18", {}),
        ("transformers", _WRAPPER, {"architecture": f"local-dir:{DATA}"}),
        ("transformers", _WRAPPER, {"architecture": "hf-hub:a/b"}),
        ("transformers", "TimmBackbone", {"backbone": "hf-hub:timm/resnet18"}),
        ("transformers", "DetrForObjectDetection", {"backbone": str(DATA)}),
        ("transformers", "DetrForObjectDetection", {"backbone": "microsoft/resnet-50"}),
        ("transformers", "BertForMaskedLM", {"attn_implementation": "kernels-community/flash"}),
    ],
    ids=lambda value: json.dumps(value)[-40:] if isinstance(value, dict) else value[:20],
)  # fmt: skip
def test_nothing_is_read_from_a_file_or_a_server(
    builder: Builder, source: str, name: str, given: dict[str, Any]
) -> None:
    """Neither weights nor configurations: refused, with the field, before anything is opened."""
    built = builder.build(source, name, given)

    assert built.fault == "caller"
    assert "never loaded" in built.message or "from a file or a server" in built.message
    assert built.opened == ()


@pytest.mark.parametrize(
    ("source", "name", "given"),
    [
        ("torchvision", "fcn_resnet50", {}),
        ("torchvision", "deeplabv3_mobilenet_v3_large", {}),
        ("torchvision", "fasterrcnn_resnet50_fpn", {}),
        ("transformers", "DetrForObjectDetection", {}),
        ("transformers", "DetrForObjectDetection", {"use_pretrained_backbone": True}),
        ("transformers", "TimmBackbone", {"backbone": "resnet18", "use_pretrained_backbone": True}),
        ("transformers", _WRAPPER, {"architecture": "resnet18"}),
        ("transformers", "GPT2LMHeadModel", {"_name_or_path": _SECRET, "n_layer": 1}),
        ("timm", "resnet18.a1_in1k", {}),
        ("timm", "efficientnet_b1_pruned", {}),
    ],
    ids=lambda value: json.dumps(value)[-40:] if isinstance(value, dict) else value[:20],
)
def test_what_a_library_loads_by_default_is_built_without(
    builder: Builder, source: str, name: str, given: dict[str, Any]
) -> None:
    """Weights of a backbone, for one: what they hold does not matter."""
    built = builder.build(source, name, given)

    assert (built.message, built.opened) == ("", ())
    assert built.parameters


@pytest.mark.parametrize(
    ("optimizer", "want", "near"),
    [
        ({"name": "Adamm"}, "optimizer.name is 'Adamm': torch.optim has no such optimizer", "Adam"),
        ({"name": "adamw_8bit"}, "has no such optimizer", "bitsandbytes.AdamW8bit"),
        ({"name": "lr_scheduler"}, "torch.optim has no such optimizer", None),
        ({"name": "Optimizer"}, "torch.optim has no such optimizer", None),
        ({"name": "Adam", "kwargs": {"weightdecay": 1}}, "takes no such argument", "weight_decay"),
        ({"name": "SGD", "kwargs": {"beta": 0.9}}, "optimizer.kwargs.beta is 0.9: ", None),
        ({"name": "SGD", "kwargs": {"params": []}}, "optimizer.kwargs.params is []: ", None),
        ({"name": "SGD", "kwargs": {"lr": -1}}, "optimizer.kwargs is {'lr': -1}: Invalid", None),
    ],
)
def test_a_wrong_optimizer_is_refused(
    builder: Builder, optimizer: dict[str, Any], want: str, near: str | None
) -> None:
    """With the near name of the class, or of its argument."""
    built = builder.ask(optimizer=optimizer)

    assert built.fault == "caller"
    assert want in built.message
    assert near is None or near in built.near


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Adadelta", {"rho": 0.9}),
        ("Adafactor", {"beta2_decay": -0.8}),
        ("Adagrad", {"lr_decay": 0.1, "foreach": False}),
        ("Adam", {"betas": [0.9, 0.99], "amsgrad": True, "fused": True}),
        ("AdamW", {"weight_decay": 0.1, "foreach": True}),
        ("Adamax", {"eps": 1e-7}),
        ("ASGD", {"lambd": 1e-3}),
        ("LBFGS", {"history_size": 5}),
        ("NAdam", {"momentum_decay": 0.004}),
        ("RAdam", {"decoupled_weight_decay": True}),
        ("RMSprop", {"alpha": 0.9, "centered": True}),
        ("Rprop", {"etas": [0.5, 1.2]}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_every_optimizer_takes_its_own_arguments(
    builder: Builder, name: str, kwargs: dict[str, Any]
) -> None:
    """All of torch.optim."""
    assert builder.ask(optimizer={"name": name, "kwargs": kwargs}).message == ""
