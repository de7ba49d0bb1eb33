"""Near names: what somebody may have meant."""

from __future__ import annotations

import pytest

from memgate.near_names import find_near, list_choices

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "RMSprop")


@pytest.mark.parametrize(
    ("name", "known", "want"),
    [
        ("Adamm", OPTIMIZERS, "Adam"),
        ("adamw", OPTIMIZERS, "AdamW"),
        ("rms_prop", OPTIMIZERS, "RMSprop"),
        ("n_layers", ("n_layer", "n_head", "n_embd"), "n_layer"),
        ("resnet5O", ("resnet18", "resnet50", "vgg16"), "resnet50"),
        ("gpt-2", ("gpt2", "gpt2-xl", "opt-125m"), "gpt2"),
        ("lroa", ("road", "lora", "loha", "dora"), "lora"),
        ("flsah", ("auto", "sdpa", "flash", "eager"), "flash"),
        ("h1oo", ("a100-40", "h100-80", "l40s"), "h100-80"),
        ("nf5", ("fp4", "nf4", "int8"), "nf4"),
        ("trl-stf", ("plain", "hf", "trl-sft", "lightning"), "trl-sft"),
        ("vit_base", ("vit_base_patch16_224", "vit_large_patch16_224"), "vit_base_patch16_224"),
    ],
)
def test_the_nearest_name_comes_first(name: str, known: tuple[str, ...], want: str) -> None:
    """A letter too many, two swapped, one wrong, capitals, signs, the start of a long name."""
    assert find_near(name, known)[0] == want


@pytest.mark.parametrize(
    ("name", "known", "want"),
    [
        ("r", ("method", "rank", "alpha"), ("rank",)),
        ("lora_alpha", ("method", "rank", "alpha"), ("alpha",)),
        ("huggingface", ("plain", "hf", "trl-sft", "lightning"), ("hf",)),
        ("4bit", ("nf4", "fp4", "int8"), ("nf4", "fp4")),
        ("deepspeed", ("ddp", "zero1", "zero2", "zero3"), ("zero1", "zero2", "zero3")),
        ("per_device_train_batch_size", ("batch_size", "eval"), ("batch_size",)),
        ("huggingface", ("torchvision", "timm", "transformers", "diffusers"), ("transformers",)),
        ("adamw_torch", OPTIMIZERS, ("AdamW",)),
        ("adamw_8bit", (*OPTIMIZERS, "bitsandbytes.AdamW8bit"), ("bitsandbytes.AdamW8bit",)),
        ("deepspeed_zero3", ("ddp", "zero1", "zero2", "zero3"), ("zero3",)),
        ("max_new_tokens", ("batch_size", "generate"), ("generate",)),
        ("r", ("red", "green"), ()),
    ],
)
def test_names_of_other_programs_are_known(
    name: str, known: tuple[str, ...], want: tuple[str, ...]
) -> None:
    """What peft, trainers and launchers call it is understood where the field is there."""
    assert find_near(name, known) == want


@pytest.mark.parametrize("name", ["", "zzz", None, 7, "Adam" * 1000])
def test_what_is_like_nothing_has_no_near_name(name: object) -> None:
    """Nothing is suggested that cannot have been meant, and no time is spent on absurd lengths."""
    assert find_near(name, OPTIMIZERS) == ()


def test_no_more_names_are_returned_than_are_wanted() -> None:
    """A person reads a few, not a list."""
    assert len(find_near("adam", ["Adam", "adam", "AD-AM", "ada_m"])) == 3


def test_choices_read_as_a_sentence() -> None:
    """One, two, more."""
    assert list_choices(["a"]) == "'a'"
    assert list_choices(["a", "b", "c"]) == "'a', 'b' or 'c'"
