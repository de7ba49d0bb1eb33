"""A batch -> the batch with what a model turns out to lack, found by trying it out.

What a model requires is not always to be read off its ``forward``: the parts that it hands its
arguments to complain. So models that describe unusual arguments are tried out once, for shapes
only; an argument that is missing where it fails, by the message or by the line, is made, and the
model is tried again. A trial that fails for another reason says nothing: the job itself does.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from memgate_worker.jobs.tasks.described import make_described
from memgate_worker.jobs.tasks.feed import Feed
from memgate_worker.jobs.tasks.shapes import run_for_shapes
from memgate_worker.jobs.tasks.task import Batch, each_tensor

#: how often something may be missing
_MAX_TRIALS = 6

#: described, and left out of training by everybody
_USUAL = re.compile(
    r"(decoder_)?(inputs_embeds|input_ids|position_ids|past_key_values|attention_mask|head_mask)"
    r"|(cross_attn_)?head_mask|token_type_ids|cache_position|encoder_(outputs|hidden_states)"
    r"|encoder_attention_mask|labels|\w*_labels?|logits_to_keep|rope_deltas|pixel_mask"
)

_TEXT, _IMAGES, _SOUND, _LABELS = "input_ids", "pixel_values", "input_features", "labels"

#: of pixels where a docstring says so, else of whole images
_WHICH_IMAGES = "pixel_attention_mask"

#: dimensions of a batch of them: sample, channels, height, width
_ONE_IMAGE = 4

#: how many codes stand for a piece of sound
_STREAMS = "num_codebooks"

#: two sizes that do not go together
_CLASH = re.compile(r"size of tensor a \(\d+\) must match the size of tensor b \((\d+)\)")

#: comes with images as rows of patches
_GRID = "image_grid_thw"

#: what a convolution says of something that is laid out in another way
_CHANNELS = re.compile(r"expected input\[.*\] to have \d+ channels|Invalid channel dimensions")

#: makes what is always made in one way, by argument
Makers = Mapping[str, Callable[[Feed], Batch]]


def complete(feed: Feed, batch: Batch, makers: Makers) -> Batch:
    """Add to a batch what its model turns out to lack."""
    is_plain = not any(_is_unusual(feed, name) for name in feed.takes - batch.keys())
    if is_plain and _GRID not in batch and feed.setting(_STREAMS) is None:
        return batch
    for _ in range(_MAX_TRIALS):
        error = _try_out(feed, batch)
        if error is None:
            return batch
        more = _find_missing(feed, batch, makers, error)
        if not more:
            return _label_outputs(feed, batch)
        batch = batch | more
    return batch


def _label_outputs(feed: Feed, batch: Batch) -> Batch:
    """Give labels the shape of what the model makes, if it takes those and not the usual ones."""
    if not isinstance(batch.get("labels"), torch.Tensor):
        return batch
    without = {name: value for name, value in batch.items() if name != "labels"}
    try:
        made = next(each_tensor(list(run_for_shapes(feed.model, "forward", without).values())))
    except Exception:  # the model's own code: it may raise anything
        return batch
    for labels in (
        torch.zeros(made.shape[:-1], dtype=torch.int64),  # a class for each vector
        torch.zeros(made.shape),
    ):
        if _try_out(feed, without | {"labels": labels}) is None:
            return without | {"labels": labels}
    return batch


def _is_unusual(feed: Feed, name: str) -> bool:
    is_tensor = "Tensor" in feed.annotations.get(name, "")
    return name in feed.takes and is_tensor and not _USUAL.fullmatch(name)


def _try_out(feed: Feed, batch: Batch) -> Exception | None:
    try:
        run_for_shapes(feed.model, "forward", batch)
    except Exception as error:  # the model's own code: it may raise anything
        return error
    return None


def _find_missing(feed: Feed, batch: Batch, makers: Makers, error: Exception) -> Batch:
    """Make what an error is about, if it is about something that was not given."""
    found: Batch = {}
    for name in _named(feed, batch, error):
        made = make_described(feed, batch, name)
        if name in makers:
            found |= makers[name](feed)
        elif made is not None:
            found[name] = made
        elif name == _WHICH_IMAGES:
            found |= _as_one_of_several(batch)
    return found or _in_streams(feed, batch, error) or _lay_out_otherwise(feed, batch, error)


def _as_one_of_several(batch: Batch) -> Batch:
    """Have an image be one of several, as of a robot's cameras, and say that it is there."""
    images = batch.get(_IMAGES)
    if not isinstance(images, torch.Tensor) or images.dim() != _ONE_IMAGE:
        return {}
    return {
        _IMAGES: images.unsqueeze(1),
        _WHICH_IMAGES: torch.ones(len(images), 1, dtype=torch.bool),
    }


def _in_streams(feed: Feed, batch: Batch, error: Exception) -> Batch:
    """Give each place of a text several tokens or labels, if an error is about that: codes."""
    tokens, clash = batch.get(_TEXT), _CLASH.search(str(error))
    num_codes, labels = feed.setting(_STREAMS), batch.get(_LABELS)
    if num_codes is not None and isinstance(labels, torch.Tensor) and _looks_into(_LABELS, error):
        return {_LABELS: labels.unsqueeze(-1).repeat(1, 1, num_codes)}
    if num_codes is None or clash is None or not isinstance(tokens, torch.Tensor):
        return {}
    width = int(clash[1])
    if tokens.dim() != 2 or width not in (num_codes, num_codes + 1):  # one more: the text's own
        return {}
    return {_TEXT: tokens.unsqueeze(-1).repeat(1, 1, width)}


def _looks_into(name: str, error: Exception) -> bool:
    """Say whether an error is about a tensor of that name that should have had more dimensions."""
    if not isinstance(error, IndexError) or _TOO_FLAT not in str(error):
        return False
    return any(f"{name}[" in line for line, _ in _lines(error.__traceback__))


#: what torch says of an index into a matrix that is one of a cube
_TOO_FLAT = "too many indices for tensor of dimension 2"


def _lay_out_otherwise(feed: Feed, batch: Batch, error: Exception) -> Batch:
    """Lay out an image or a spectrogram in another way, if an error is about that.

    An image may be one of several, its patches rows of its own sample rather than of the whole
    batch, and a spectrogram may have its frames after its bins.
    """
    images, sound = batch.get(_IMAGES), batch.get(_SOUND)
    if isinstance(sound, torch.Tensor) and sound.dim() == 3 and _CHANNELS.search(str(error)):
        return {_SOUND: sound.transpose(1, 2).contiguous()}
    if not isinstance(images, torch.Tensor) or not _uses_images(error):
        return {}
    if isinstance(error, IndexError) and _GRID in batch and images.dim() == 2:
        return {_IMAGES: images.unflatten(0, (feed.num_samples, -1))}
    is_too_flat = isinstance(error, ValueError) and "values to unpack" in str(error)
    return {_IMAGES: images.unsqueeze(1)} if is_too_flat and images.dim() < _MOST_DIMENSIONS else {}


#: of images: sample, image, tile, channels, height, width
_MOST_DIMENSIONS = 6


def _named(feed: Feed, batch: Batch, error: Exception) -> Iterator[str]:
    """Yield the absent arguments that an error names, or the line where it happened uses."""
    said = set(re.findall(r"\w+", str(error)))
    words = set(said)
    for line, given in _lines(error.__traceback__):
        words |= {word for word in re.findall(r"\w+", line) if given.get(word, error) is None}
    for name in sorted(words & feed.takes - batch.keys()):
        if _is_unusual(feed, name) or (name in said and name.endswith("_labels")):
            yield name


def _uses_images(error: Exception) -> bool:
    """Say whether a line on the way to an error uses images."""
    return any(_IMAGES in line for line, _ in _lines(error.__traceback__))


def _lines(trace: TracebackType | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the source lines on the way to an error, with the variables that they see."""
    while trace is not None:
        code = trace.tb_frame.f_code
        yield linecache.getline(code.co_filename, trace.tb_lineno), trace.tb_frame.f_locals
        trace = trace.tb_next
