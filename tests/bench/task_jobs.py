"""Every trainable model of the installed libraries, made small. Run in a runtime: it prints JSON.

    python task_jobs.py LIBRARY [NAME...]   ->  {"name": [spec, spec, ...], ...}

Of a model of transformers the configuration is the default one with few layers and experts. Some
configurations do not allow that, so each model has several: the first that can be built counts.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CLASS = re.compile(r"(?!TF|Flax|AutoModel|Load|MODEL|is_)\w+For[A-Z]\w*$")

_LAYERS = re.compile(
    r"num_(hidden_)?layers|n_layers?|(num_)?(encoder|decoder)_layers|num_blocks|depth"
    r"|num_(encoder|decoder|hidden|vision|text|prelude|coda|fusion|decoder_hidden|block)_?\w*layers"
)
_EXPERTS = re.compile(r"(moe_)?(n|num)_((local|routed)_)?experts|zero_expert_num")

#: how many experts each token is sent to
_CHOSEN = re.compile(r"(n|num)_experts_per_tok(en)?|(moe_)?top_?k(_experts)?|moe_k")

#: which layers something is taken from
_PLACES = re.compile(r"\w*(indices|indexes|_layers?)")

_MIN_EXPERTS = 4

#: widths that no other setting must fit
_INNER = re.compile(r"(moe_)?intermediate_size(_mlp)?|(expert_)?ffn_hidden_size")

#: parts whose vectors must be as wide as those of text
_WIDTHS = ("out_hidden_size", "projection_dim", "proj_dim", "text_hidden_size")

#: by class or configuration: what a published configuration has, and the default one lacks; and
#: where masks come out of an image or a window, sizes at which they are still followed
_SETTINGS = Path(__file__).parents[1] / "data" / "task_settings.json"
_LACKING: dict[str, dict[str, Any]] = json.loads(_SETTINGS.read_text())


#: inputs that have a size of their own
_IMAGES = {"pixel_values", "pixel_values_videos"}
_SOUND = {"input_values", "input_features"}

_TEXT = {"sequence_length": 64}

#: by class: where the size that follows from a configuration is too small for the model
_INPUTS: dict[str, dict[str, Any]] = {
    "DepthProForDepthEstimation": {"shape": [3, 1536, 1536]},
    "PPOCRV5MobileRecForTextRecognition": {"shape": [3, 96, 640]},
    "PPOCRV5ServerRecForTextRecognition": {"shape": [3, 48, 320]},
    "PPOCRV6SmallRecForTextRecognition": {"shape": [3, 48, 320]},
    "PPOCRV6TinyRecForTextRecognition": {"shape": [3, 48, 320]},
    "PerceiverForMaskedLM": {"sequence_length": 2048},
    "PerceiverForSequenceClassification": {"sequence_length": 2048},
    "ReformerForMaskedLM": {"sequence_length": 4096},
    "ReformerForQuestionAnswering": {"sequence_length": 4096},
    "ReformerForSequenceClassification": {"sequence_length": 4096},
    "ReformerModelWithLMHead": {"sequence_length": 4096},
    "RfDetrForInstanceSegmentation": {"shape": [3, 560, 560]},
    "RfDetrForObjectDetection": {"shape": [3, 560, 560]},
}


def transformers_jobs(chosen: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each class with a task in its name, and its job specs."""
    import transformers

    for name in chosen or filter(_CLASS.match, dir(transformers)):
        model_class: Any = getattr(transformers, name)
        if inspect.isclass(model_class) and issubclass(model_class, transformers.PreTrainedModel):
            configs = _configs(name, vars(transformers)[name].config_class)
            yield (
                name,
                [
                    _spec("transformers", {"class": name, "config": config}, given)
                    for given in _inputs(name, model_class, configs[0])
                    for config in configs
                ],
            )


def _inputs(name: str, model_class: Any, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how long text is for a model of text alone; the others have a size of their own."""
    if name in _INPUTS:
        return [_INPUTS[name]]
    takes = set(inspect.signature(model_class.forward).parameters)
    if "input_ids" not in takes:
        return [{}]
    if takes & _IMAGES and not _is_blind(model_class.config_class, config):
        return [{}]
    return [{}, _TEXT] if takes & _SOUND else [_TEXT]


def _is_blind(config_class: Any, config: dict[str, Any]) -> bool:
    """Say whether a model that may take images is by default one without the part for them."""
    try:
        made = config_class(**config)
    except Exception:  # a library's own code: it may raise anything
        return False
    return getattr(made, "vision_config", config) is None


def _configs(class_name: str, config_class: Any) -> list[dict[str, Any]]:
    lacking = _LACKING.get(class_name) or _LACKING.get(config_class.__name__, {})
    try:
        config = config_class(**lacking)
    except Exception:  # a library's own code: it may raise anything
        return [lacking]
    lacking = _merge(_complete(config), lacking)
    small = _merge(_small(config), lacking)
    no_parts = _merge({k: v for k, v in _small(config).items() if not isinstance(v, dict)}, lacking)
    no_layers = _merge(_small(config, layers=False), lacking)
    bare = _merge(_small(config, bare=True), lacking)
    unique = {json.dumps(one): one for one in (small, bare, no_parts, no_layers, lacking, {})}
    return list(unique.values())


def _merge(some: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    merged = dict(some)
    for name, value in others.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merge(merged[name], value) if both else value
    return merged


def _complete(config: Any) -> dict[str, Any]:
    """Return settings that follow from others, where the default is none or does not fit."""
    given = vars(config)
    heads, width = given.get("num_attention_heads"), given.get("hidden_size")
    follow = {
        "head_dim": width // heads if isinstance(heads, int) and isinstance(width, int) else None,
        "num_key_value_heads": heads,
        "vocab_size": 32,
        "prediction_length": 24,
    }
    settings: dict[str, Any] = {
        name: value
        for name, value in follow.items()
        if name in given and given[name] is None and value is not None
    }
    text = given.get("text_config")
    if (
        hasattr(text, "hidden_size")
        and type(given.get("projection_dim")) is int
        and _is_joint(config)
    ):
        settings["projection_dim"] = text.hidden_size
    for name in getattr(type(config), "sub_configs", {}):
        part = given.get(name)
        inner = _complete(part) if hasattr(part, "to_dict") else {}
        if part is not None and part is not text and hasattr(text, "hidden_size"):
            own = _settings(type(part))
            inner |= {one: text.hidden_size for one in _WIDTHS if one in own}
        if inner:
            settings[name] = inner
    return settings


def _is_joint(config: Any) -> bool:
    """Say whether images are put into text, rather than compared with it."""
    return any("image_token" in name for name in vars(config))


def _small(config: Any, *, layers: bool = True, bare: bool = False) -> dict[str, Any]:
    """Return the settings that make a configuration small, and its parts.

    ``bare``: parts are as they are by themselves, for owners whose settings do not go together.
    """
    own = _settings(type(config))
    small: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name not in own or not isinstance(value, int) or isinstance(value, bool):
            continue
        if layers and _LAYERS.fullmatch(name) and value > 2:
            small[name] = _enough_layers(config, value)
        elif _INNER.fullmatch(name) and value > 8192:
            small[name] = 1024
        elif _EXPERTS.fullmatch(name):
            small[name] = min(value, _enough_experts(vars(config)))
    for name, declared in getattr(type(config), "sub_configs", {}).items():
        part: Any = getattr(config, name, None)
        if hasattr(part, "to_dict") and hasattr(type(part), "model_type"):
            inner = _small(part, layers=layers, bare=bare)
            is_any = "Auto" in getattr(declared, "__name__", "")
            if inner:  # a part that is given at all is not filled in with what its owner sets
                kind = {"model_type": part.model_type} if is_any else {}
                small[name] = ({} if bare else _set_by_owner(config, name)) | inner | kind
    return small


def _set_by_owner(config: Any, part: str) -> dict[str, Any]:
    declared = getattr(type(config), "sub_configs_defaults", {}).get(part)
    known = _settings(type(getattr(config, part)))
    given = getattr(declared, "init_kwargs", None) or {}
    return {name: value for name, value in given.items() if name in known}


def _settings(config_class: Any) -> set[str]:
    declared = set(inspect.signature(config_class.__init__).parameters)
    return declared | set(getattr(config_class, "__dataclass_fields__", {}))


def _enough_experts(settings: dict[str, Any]) -> int:
    """Return how many experts it takes to choose from, in each group."""
    chosen = [value for name, value in settings.items() if _CHOSEN.fullmatch(name)]
    at_once = max((one for one in chosen if isinstance(one, int)), default=1)
    return max(_MIN_EXPERTS, 2 * at_once) * (settings.get("n_group") or 1)


def _enough_layers(config: Any, num_layers: int) -> int:
    """Return how many layers it takes to have one of each kind, and those that are named."""
    enough = 2
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == num_layers:
            if all(isinstance(one, int) for one in value):  # sizes of each layer, all of them
                return num_layers
            firsts = [value.index(kind) for kind in value if isinstance(kind, str)]
            enough = max([enough, *(first + 1 for first in firsts)])
        elif isinstance(value, list | tuple) and _PLACES.fullmatch(name):
            named = [one + 1 for one in value if isinstance(one, int)]
            enough = max([enough, *(one for one in named if one <= num_layers + 1)])
    return min(enough, num_layers)


def torchvision_jobs(chosen: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each model of torchvision but those of quantized weights."""
    import torchvision

    for name in chosen or torchvision.models.list_models():
        if not name.startswith("quantized_"):
            yield name, [_spec("torchvision", {"name": name}, {"shape": _shape(name)})]


def _shape(name: str) -> list[int]:
    """Return the shape of an image, or of a video for models that take one."""
    import torchvision

    package = torchvision.models.get_model_builder(name).__module__.split(".")[2]
    if package == "video":
        return [3, 16, 224, 224]
    return [3, 299, 299] if name == "inception_v3" else [3, 224, 224]


def timm_jobs(chosen: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each model of timm."""
    import timm

    for name in chosen or timm.list_models():
        yield name, [_spec("timm", {"name": name}, {})]


def _spec(source: str, model: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"source": source, **model}, "input": given, "batch_size": 2, "iterations": 2}


def main() -> None:
    """Print the jobs of one library, of all its models or of some."""
    jobs = {"transformers": transformers_jobs, "torchvision": torchvision_jobs, "timm": timm_jobs}
    library, *chosen = sys.argv[1:]
    json.dump(dict(jobs[library](chosen)), sys.stdout)


if __name__ == "__main__":
    main()
