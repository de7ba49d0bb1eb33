"""The inputs of transformers' models: text, images, sound and series, as their arguments ask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from memgate.errors import InputError
from memgate.mistakes import Mistake, unknown_field
from memgate_worker.jobs.tasks.feed import Feed, refuse_input
from memgate_worker.jobs.tasks.placeholders import as_patches, place_images
from memgate_worker.jobs.tasks.task import Batch

#: a second of sound, at the rate at which speech is sampled
_SAMPLES = 16_000

#: frames of a spectrogram, for models that take any number
_FRAMES = 512

#: what another model found in an image
_NUM_REGIONS = 36

#: tokens of a question or a task
_QUESTION = 32

#: pixels of a patch on each side, for models that do not say
_PATCH = 16


def make_inputs(feed: Feed) -> Batch:
    """Make a batch without labels.

    Raises:
        InputError: if the spec gives what the model does not take.
        UnsupportedJobError: if the model requires what we cannot make.
    """
    if type(feed.model).forward is nn.Module.forward:
        raise feed.refuse("it has no forward; its parts are trained one by one")
    if feed.input.tensors:
        return make_named(feed)
    _check_given(feed)
    wanted = _wanted(feed)
    if feed.input.is_empty and wanted and _TEXT_ALONE.issuperset(wanted):
        raise refuse_input(
            "sequence_length",
            None,
            f"{type(feed.model).__name__} takes text, and its length decides what it needs",
            "give it, in tokens",
        )
    batch: Batch = {}
    for name in wanted:
        if name not in batch:
            batch |= MAKERS[name](feed)
    if not batch:
        raise feed.refuse(f"it takes {', '.join(sorted(feed.takes - {'kwargs'}))}")
    if feed.is_packed and not _PACKED.issuperset(batch):
        rule = f"{type(feed.model).__name__} takes more than text, which is not packed"
        step = "leave it out"
        raise InputError.from_mistakes(
            Mistake(field="packing", value="true", rule=rule, next_step=step)
        )
    return place_images(feed, batch)


def make_named(feed: Feed) -> Batch:
    """Make the tensors that a spec names."""
    mistakes = [
        unknown_field(
            f"input.tensors.{name}", one.model_dump(), sorted(feed.takes), rule=_NOT_TAKEN
        )
        for name, one in feed.input.tensors.items()
        if name not in feed.takes
    ]
    mistakes += [
        Mistake(
            field=f"input.tensors.{name}",
            value="missing",
            rule=f"{type(feed.model).__name__} requires it",
            next_step="add its shape, and its dtype if that is not float32",
        )
        for name in sorted(feed.requires - feed.input.tensors.keys() - _LATER)
    ]
    if mistakes:
        raise InputError.from_mistakes(*mistakes)
    return {
        name: torch.zeros((feed.num_samples, *one.shape), dtype=getattr(torch, one.dtype))
        for name, one in feed.input.tensors.items()
    }


_NOT_TAKEN = "the model's forward takes no such argument"

#: text, and what comes with it
_TEXT_ALONE = frozenset({"input_ids", "bbox", "entity_ids"})


#: what a packed batch is made of
_PACKED = frozenset({"input_ids", "attention_mask"})


def _wanted(feed: Feed) -> list[str]:
    if feed.model.main_input_name == "inputs":  # which may be text or images, also by their names
        return ["inputs"]
    return [name for name in MAKERS if _is_wanted(feed, name)]


def _check_positions(feed: Feed) -> None:
    """Refuse texts that are longer than a model's table of positions: on a GPU they fail, too."""
    limit = feed.setting("max_position_embeddings", "n_positions")
    given = feed.input.length
    if given is None or not isinstance(limit, int) or given <= limit:
        return
    # Rotary positions have no table. Some tables have rows for padding in front.
    tables = (
        name
        for name, module in feed.model.named_modules()
        if isinstance(module, nn.Embedding) and limit <= module.num_embeddings <= limit + _PADDING
        if "position" in name or name.endswith("wpe")
    )
    if next(tables, None) is not None:
        rule = f"{type(feed.model).__name__} has a table of {limit:,} positions"
        raise refuse_input("sequence_length", given, rule, "give that many at most")


#: rows of a table of positions that stand for no position
_PADDING = 2

#: made with the labels
_LATER = frozenset({"labels", "return_loss"})

#: which inputs can take the place of others
_TEXT = ("input_ids", "decoder_input_ids")


def _check_given(feed: Feed) -> None:
    _check_positions(feed)
    takes_images = feed.takes & {"pixel_values", "flattened_patches", "pixel_values_videos"}
    if feed.input.shape is not None and not (takes_images or feed.takes & {"inputs"}):
        raise refuse_input(
            "shape",
            list(feed.input.shape),
            f"{type(feed.model).__name__} takes no images",
            "give 'sequence_length' instead",
        )
    if feed.input.sequence_length is not None and not feed.takes & _LENGTHS:
        raise refuse_input(
            "sequence_length",
            feed.input.sequence_length,
            f"{type(feed.model).__name__} takes no sequences",
            "give 'shape' instead",
        )


#: inputs that have a length
_LENGTHS = frozenset({*_TEXT, "input_values", "input_features", "past_values", "inputs"})


#: which images each token sees
_LOOKS = "image_attention_mask"

#: optional in the signature, and always there in training
_BESIDE = frozenset(
    {
        *("input_ids", "pixel_values", "bbox", "visual_embeds", "visual_feats", "entity_ids"),
        _LOOKS,
    }
)


_NO_SUCH = object()


def _is_wanted(feed: Feed, name: str) -> bool:
    """Text and images are fed to all that take them; other inputs if they are required."""
    if name not in feed.takes:
        return False
    if name.startswith("pixel_values") and getattr(feed.config, "vision_config", _NO_SUCH) is None:
        return False  # it was built without the part that looks at images
    if name == _LOOKS and not _has_looks(feed):
        return False
    return name in feed.requires | feed.mains | _BESIDE


def _text(feed: Feed) -> Batch:
    tokens = feed.tokens(_num_rows(feed), feed.length)
    batch = {"input_ids": tokens}
    if "global_attention_mask" in feed.takes:  # the first token stands for the text
        batch["global_attention_mask"] = torch.zeros_like(tokens)
        batch["global_attention_mask"][:, 0] = 1
    if "attention_mask" in feed.takes:
        # transformers checks: for a full mask it makes none of its own.
        batch["attention_mask"] = torch.ones_like(tokens)
        if not feed.is_packed:
            batch["attention_mask"][:, -1] = 0
    return batch


def _num_rows(feed: Feed) -> int:
    """Return how many rows a batch of text has: of music, one for each codebook of a sample."""
    described = feed.described.get("input_ids")
    in_books = described is not None and "batch_size * num_codebooks" in described.shape
    return feed.num_samples * (feed.setting("num_codebooks", default=1) if in_books else 1)


def _images(feed: Feed) -> Batch:
    """Return images of one colour, which is not black: some models leave out black ones."""
    shape = feed.image_shape
    if "aspect_ratio_ids" in feed.takes:  # one image, in tiles that share a shape
        return {"pixel_values": torch.ones(feed.num_samples, 1, _num_tiles(feed), *shape)}
    if _has_looks(feed):  # one of several images
        return {"pixel_values": torch.ones(feed.num_samples, 1, *shape)}
    if "spatial_shapes" in feed.takes:
        one = as_patches(feed, shape)
        return {name: feed.for_all(part) for name, part in one.items() if name in feed.takes}
    if feed.task.startswith("KeypointMatching"):  # between two images
        shape = (2, *shape)
    if feed.task.startswith("Images"):  # several of them
        shape = (feed.setting("num_images", default=2), *shape)
    frames = feed.setting("num_frames")
    is_video = not feed.task.startswith("Image")
    if frames and is_video and len(shape) == 3:
        shape = (frames, *shape)
    return {"pixel_values": torch.ones(feed.num_samples, *shape)}


def _num_tiles(feed: Feed) -> int:
    return int(feed.setting("max_num_tiles", default=1))


def _patches(feed: Feed) -> Batch:
    """Return images as rows of pixels, each with its row and column before it."""
    size = feed.setting("patch_size", default=_PATCH) ** 2 * 3 + 2
    return {"flattened_patches": torch.ones(feed.num_samples, 256, size)}


def _sound(feed: Feed) -> Batch:
    """Return waves, or a spectrogram for models that look at one as an image."""
    bins = feed.setting("num_mel_bins")
    if feed.setting("frequency_stride") or (bins and feed.setting("max_length")):
        frames = feed.setting("max_length", default=_FRAMES)
        return {"input_values": torch.zeros(feed.num_samples, frames, bins)}
    length = feed.input.length or _SAMPLES
    return {"input_values": torch.zeros(feed.num_samples, length)}


def _spectrogram(feed: Feed) -> Batch:
    bins = feed.setting("num_mel_bins", "input_feat_per_channel", "feature_size", default=80)
    whole = feed.setting("max_source_positions")
    if feed.setting("feature_projection_input_dim"):
        whole = None
    if feed.setting("encoder_layers") and whole and not feed.setting("input_feat_per_channel"):
        return {"input_features": torch.zeros(feed.num_samples, bins, 2 * whole)}
    bins = _width_of_first_layer(feed, feed.setting(*_WIDTHS_OF_FRAMES, default=bins))
    frames = feed.input.length or _FRAMES
    batch = {"input_features": torch.zeros(feed.num_samples, frames, bins)}
    if "attention_mask" in feed.takes:
        batch["attention_mask"] = torch.ones(feed.num_samples, frames, dtype=torch.int64)
    return batch


_WIDTHS_OF_FRAMES = ("feature_projection_input_dim", "input_dim")


def _width_of_first_layer(feed: Feed, bins: int) -> int:
    """Return how wide frames are for a model that takes several of a spectrogram as one."""
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.Embedding)
    first = next((one for one in feed.model.modules() if isinstance(one, layers)), None)
    width = first.in_features if isinstance(first, nn.Linear) else bins
    by_itself = bins * feed.setting("subsampling_factor", default=1)  # it puts them together
    return bins if width % bins or width == by_itself else width


def _series(feed: Feed) -> Batch:
    length = feed.setting("context_length", default=feed.length)
    lags = feed.setting("lags_sequence")
    past = length + max(lags) if lags else length
    channels = feed.setting("num_input_channels", "input_size")
    shape: tuple[int, ...] = (feed.num_samples, past)
    if channels is not None and not (lags and channels == 1):
        shape = (*shape, channels)
    batch = {"past_values": torch.zeros(shape)}
    if "past_observed_mask" in feed.requires:
        batch["past_observed_mask"] = torch.ones(shape)
    if "past_time_features" in feed.requires:
        features = feed.setting("num_time_features", default=0)
        ahead = feed.setting("prediction_length", default=length)
        batch["past_time_features"] = torch.zeros(feed.num_samples, past, features)
        batch["future_time_features"] = torch.zeros(feed.num_samples, ahead, features)
        batch["future_values"] = torch.zeros(feed.num_samples, ahead)
    return batch


def _anything(feed: Feed) -> Batch:
    """Return text for a model of any kind of input: all the positions that it has."""
    if "pixel_values" in feed.takes:
        return _images(feed)
    if "input_ids" not in feed.takes:
        raise feed.refuse("it takes inputs of any kind")
    length = feed.setting("max_position_embeddings", default=feed.length)
    return {"inputs": feed.tokens(feed.num_samples, feed.input.length or length)}


def _boxes(feed: Feed) -> Batch:
    """Return where each word is on a page."""
    return {"bbox": torch.zeros(feed.num_samples, feed.length, 4, dtype=torch.int64)}


def _regions(feed: Feed) -> Batch:
    """Return what another model saw in some regions of an image."""
    batch = {}
    if "visual_embeds" in feed.takes:
        width = feed.setting("visual_embedding_dim", default=2048)
        batch["visual_embeds"] = torch.zeros(feed.num_samples, _NUM_REGIONS, width)
    if "visual_feats" in feed.takes:
        width = feed.setting("visual_feat_dim", default=2048)
        batch["visual_feats"] = torch.zeros(feed.num_samples, _NUM_REGIONS, width)
        places = feed.setting("visual_pos_dim", default=4)
        batch["visual_pos"] = torch.zeros(feed.num_samples, _NUM_REGIONS, places)
    if "visual_attention_mask" in feed.takes:
        batch["visual_attention_mask"] = torch.ones(feed.num_samples, _NUM_REGIONS)
    return batch


def _entities(feed: Feed) -> Batch:
    """Return which entities a text mentions, two of them, and where."""
    mentions = feed.setting("max_mention_length", default=30)
    ids = torch.ones(feed.num_samples, 2, dtype=torch.int64)
    places = torch.full((feed.num_samples, 2, mentions), -1)
    places[..., 0] = 1
    batch = {"entity_ids": ids, "entity_attention_mask": ids, "entity_position_ids": places}
    for name in ("entity_start_positions", "entity_end_positions"):
        if name in feed.takes:
            batch[name] = ids
    return batch


def _robot(feed: Feed) -> Batch:
    """Return where a robot is, and what it should do."""
    if not feed.setting("max_state_dim"):
        raise feed.refuse("it requires state")
    steps, size = feed.setting("chunk_size"), feed.setting("max_action_dim")
    return {
        "state": torch.zeros(feed.num_samples, feed.setting("max_state_dim")),
        "actions": torch.zeros(feed.num_samples, steps, size),
    }


def _has_looks(feed: Feed) -> bool:
    """Say whether each token sees some of several images; others mask patches by that name."""
    described = feed.described.get(_LOOKS)
    return _LOOKS in feed.takes and (described is None or len(described.shape) != 2)


def _looks(feed: Feed) -> Batch:
    """Return which images each token sees: there is one."""
    return {_LOOKS: torch.ones(feed.num_samples, feed.length, 1)}


def _names(feed: Feed) -> Batch:
    """Return what is to be found, a text for each query but those that are learned."""
    learned = feed.setting("text_encoder_n_ctx", default=0)
    queries = feed.setting("num_queries", default=_QUESTION) - learned
    length = feed.setting("task_seq_len", default=_QUESTION)
    return {"text_inputs": feed.tokens(feed.num_samples, queries, length)}


def _question(name: str, *lengths: str) -> Callable[[Feed], Batch]:
    """Return a maker of text beside the text."""
    return lambda feed: {
        name: feed.tokens(feed.num_samples, feed.setting(*lengths, default=_QUESTION))
    }


def _video(feed: Feed) -> Batch:
    frames = feed.setting("num_frames", "frames_per_clip", default=8)
    return {"pixel_values_videos": torch.ones(feed.num_samples, frames, *feed.image_shape)}


#: by argument, in the order in which they are looked for
MAKERS: dict[str, Callable[[Feed], Batch]] = {
    "input_ids": _text,
    "pixel_values": _images,
    "pixel_values_videos": _video,
    "flattened_patches": _patches,
    "input_values": _sound,
    "input_features": _spectrogram,
    "past_values": _series,
    "bbox": _boxes,
    "visual_embeds": _regions,
    "visual_feats": _regions,
    "entity_ids": _entities,
    "qformer_input_ids": _question("qformer_input_ids"),
    "task_inputs": _question("task_inputs", "task_seq_len"),
    "text_inputs": _names,
    "state": _robot,
    _LOOKS: _looks,
    "inputs": _anything,
}
