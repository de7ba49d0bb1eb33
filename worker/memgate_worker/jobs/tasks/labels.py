"""The labels of transformers' models: the task is in the name of the class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memgate.jobspec import JobSpec
from memgate_worker.jobs.tasks.described import add_required, make_described, num_patches
from memgate_worker.jobs.tasks.feed import Feed
from memgate_worker.jobs.tasks.inputs import MAKERS, make_inputs
from memgate_worker.jobs.tasks.task import Batch, Task, each_tensor
from memgate_worker.jobs.tasks.trial import complete

#: answers of a multiple choice
_NUM_CHOICES = 4

#: things to be found in an image
_NUM_OBJECTS = 4

#: frames of a spectrogram that is to be made; whole groups of them, whatever a group is
_NUM_FRAMES = 128


def transformers_task(spec: JobSpec, model: nn.Module) -> Task:
    """Return how a model of transformers is trained: most compute their loss from labels."""
    feed = Feed(spec, model)
    feed.settle()
    batch = make_inputs(feed)
    make = next((make for name, make in _MAKERS.items() if feed.task.startswith(name)), _like_text)
    if not any("label" in name for name in batch):
        batch = make(feed, batch)
    if not feed.input.tensors:  # which are all that the model is fed, but for labels
        batch = complete(feed, add_required(feed, batch), MAKERS)
    for name in feed.demands.refused & batch.keys():
        del batch[name]
    return Task(batch=batch, call=lambda model, batch: model(**batch), loss=_find_loss)


def _find_loss(outputs: Any, batch: Batch) -> torch.Tensor:
    loss = getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.mean() if loss.dim() else loss  # of each sample, for some
    return _regress(outputs)


def _regress(outputs: Any) -> torch.Tensor:
    """Return a squared error of the first output: for models that have no loss of their own."""
    made = next(one for one in each_tensor(list(outputs.values())) if one.requires_grad)
    return nn.functional.mse_loss(made, torch.zeros_like(made))


def _classes(feed: Feed, batch: Batch) -> Batch:
    if "labels" not in feed.takes:
        return batch
    writes = feed.task == "ImageClassification" and {"input_ids", "pixel_values"} <= batch.keys()
    if writes:  # the class, as text about the image
        return _like_text(feed, batch)
    return batch | {"labels": torch.zeros(feed.num_samples, dtype=torch.int64)}


def _like_text(feed: Feed, batch: Batch) -> Batch:
    """Return a label for each token; a model without text in it learns to write some."""
    if "labels" not in feed.takes:
        return batch | ({"return_loss": True} if "return_loss" in feed.takes else {})
    if _writes_in_rows(feed):
        codes = feed.setting(*_CODES)
        return batch | {
            "decoder_input_ids": feed.tokens(feed.num_samples, feed.length, codes),
            "labels": feed.tokens(feed.num_samples * codes, feed.length),
        }
    text = next((batch[name] for name in ("input_ids", "inputs") if name in batch), None)
    if text is None:
        text = feed.tokens(feed.num_samples, feed.length)
    described = make_described(feed, batch, "labels")
    is_other = described is not None and described.dim() > 1 and described.shape != text.shape
    return batch | {"labels": described if is_other else text}


#: how many codes stand for a piece of sound
_CODES = ("num_codebooks", "num_channels")


def _writes_in_rows(feed: Feed) -> bool:
    """Say whether a model writes sound in codes, each with labels in a row of their own."""
    asked = [feed.described.get(name) for name in ("decoder_input_ids", "labels")]
    return all(one is not None and one.shape[0].endswith("* num_codebooks") for one in asked)


def _span(feed: Feed, batch: Batch) -> Batch:
    positions = torch.zeros(feed.num_samples, dtype=torch.int64)
    if "start_positions" not in feed.takes:
        return _like_text(feed, batch)
    return batch | {"start_positions": positions, "end_positions": positions}


def _choices(feed: Feed, batch: Batch) -> Batch:
    """Repeat every sample for each of some choices."""
    repeated = {
        name: tensor.unsqueeze(1).repeat(1, _NUM_CHOICES, *[1] * (tensor.dim() - 1))
        for name, tensor in batch.items()
    }
    return _classes(feed, repeated)


def _pixels(feed: Feed, batch: Batch) -> Batch:
    _, height, width = feed.image_shape[-3:]
    labels = torch.zeros(feed.num_samples, height, width, dtype=torch.int64)
    return batch | ({"labels": labels} if "labels" in feed.takes else {})


def _depths(feed: Feed, batch: Batch) -> Batch:
    return batch


def _objects(feed: Feed, batch: Batch) -> Batch:
    box = torch.tensor([0.5, 0.5, 0.25, 0.25])
    label = {
        "class_labels": torch.zeros(_NUM_OBJECTS, dtype=torch.int64),
        "boxes": box.repeat(_NUM_OBJECTS, 1),
    }
    labels = [dict(label) for _ in range(feed.num_samples)]
    return _name_classes(feed, batch) | {"labels": labels}


def _name_classes(feed: Feed, batch: Batch) -> Batch:
    """Have a text name classes, one word each, as a model that looks for them splits it."""
    ends = getattr(sys.modules[type(feed.model).__module__], "SPECIAL_TOKENS", None)
    if ends is None or "input_ids" not in batch:
        return batch
    tokens = torch.full_like(batch["input_ids"], feed.token)
    tokens[:, 2::2] = ends[_FULL_STOP]
    tokens[:, 0], tokens[:, -1] = ends[0], ends[1]
    return batch | {"input_ids": tokens}


#: which of the tokens that end a name it is
_FULL_STOP = 2


def _masks(feed: Feed, batch: Batch) -> Batch:
    _, height, width = feed.image_shape[-3:]
    if "mask_labels" not in feed.takes:
        if "labels" not in feed.takes:
            return batch
        if "list" not in feed.annotations["labels"]:  # one mask for an image, not one for an object
            described = make_described(feed, batch, "labels")
            is_mask = described is not None and described.dim() > 1
            one = described if is_mask else torch.zeros(feed.num_samples, height, width)
            return batch | {"labels": one}
        with_objects = _objects(feed, batch)
        for label in with_objects["labels"]:
            label["masks"] = torch.zeros(_NUM_OBJECTS, height, width)
        return with_objects
    masks = torch.zeros(_NUM_OBJECTS, height, width)
    classes = torch.zeros(_NUM_OBJECTS, dtype=torch.int64)
    return batch | {
        "mask_labels": [masks] * feed.num_samples,
        "class_labels": [classes] * feed.num_samples,
    }


def _masked_patches(feed: Feed, batch: Batch) -> Batch:
    """Mask half of an image: some models look at what is masked alone, others at the rest."""
    masked = torch.zeros(feed.num_samples, num_patches(feed), dtype=torch.bool)
    masked[:, : masked.shape[1] // 2] = True
    return batch | {"bool_masked_pos": masked}


def _pretraining(feed: Feed, batch: Batch) -> Batch:
    if "bool_masked_pos" in feed.takes:
        return _masked_patches(feed, batch)
    batch = _like_text(feed, batch)
    for name in ("next_sentence_label", "sentence_order_label"):
        if name in feed.takes:
            batch[name] = torch.zeros(feed.num_samples, dtype=torch.int64)
    return batch


def _frames(feed: Feed, batch: Batch) -> Batch:
    if "labels" not in feed.takes:
        return batch
    if "input_values" in batch:
        frames = feed.model._get_feat_extract_output_lengths(batch["input_values"].shape[-1])
    else:
        frames = batch["input_features"].shape[1]
    labels = torch.zeros(feed.num_samples, int(frames), feed.setting("num_labels"))
    return batch | {"labels": labels}


def _speech(feed: Feed, batch: Batch) -> Batch:
    """Return what is to be said, as a spectrogram where the model makes one."""
    bins = feed.setting("num_mel_bins")
    if bins is None or "stop_labels" not in feed.takes:
        return _like_text(feed, batch)
    return batch | {"labels": torch.zeros(feed.num_samples, _NUM_FRAMES, bins)}


def _answers(feed: Feed, batch: Batch) -> Batch:
    """Return a place in the text, or how good each of the known answers is, or one to write."""
    if "decoder_input_ids" in feed.takes and "start_positions" not in feed.takes:
        return _like_text(feed, batch)
    if "start_positions" in feed.takes or not _LOOKS.intersection(batch):
        return _span(feed, batch)
    answers = feed.setting("num_labels")
    if "visual_feats" in batch:
        return batch | {"labels": torch.zeros(feed.num_samples, dtype=torch.int64)}
    return batch | {"labels": torch.zeros(feed.num_samples, answers)}


#: what questions about images come with
_LOOKS = frozenset({"pixel_values", "visual_embeds", "visual_feats"})


def _entity_spans(feed: Feed, batch: Batch) -> Batch:
    return batch | {"labels": torch.zeros_like(batch["entity_ids"])}


def _few_words(feed: Feed, batch: Batch) -> Batch:
    """Return what is said in a piece of sound: fewer words than it has frames."""
    return batch | {"labels": torch.full((feed.num_samples, 16), feed.token, dtype=torch.int64)}


def _transducer(feed: Feed, batch: Batch) -> Batch:
    """Return what is said, and what was said before each word of it, from the silence on."""
    labelled = _few_words(feed, batch)
    words = labelled["labels"]
    silence = torch.full_like(words[:, :1], feed.setting("blank_token_id", default=feed.token))
    return labelled | {"decoder_input_ids": torch.cat((silence, words), dim=1)}


def _future(feed: Feed, batch: Batch) -> Batch:
    ahead = feed.setting("prediction_length")
    if "future_values" not in feed.takes or "future_values" in batch or ahead is None:
        return batch
    past = batch["past_values"]
    return batch | {"future_values": torch.zeros(past.shape[0], ahead, *past.shape[2:])}


def _nothing(feed: Feed, batch: Batch) -> Batch:
    return batch


#: by the beginning of the task's name
_MAKERS: dict[str, Callable[[Feed, Batch], Batch]] = {
    "SequenceClassification": _classes,
    "ImageClassification": _classes,
    "VideoClassification": _classes,
    "AudioClassification": _classes,
    "AudioFrameClassification": _frames,
    "NextSentencePrediction": _classes,
    "XVector": _classes,
    "MultipleChoice": _choices,
    "QuestionAnswering": _answers,
    "ImageAndTextRetrieval": _classes,
    "ImagesAndTextClassification": _classes,
    "VisualReasoning": _classes,
    "EntitySpanClassification": _entity_spans,
    "EntityPairClassification": _classes,
    "EntityClassification": _classes,
    "TextToSpeech": _speech,
    "SpeechToSpeech": _speech,
    "SemanticSegmentation": _pixels,
    "ImageSegmentation": _masks,
    "Segmentation": _masks,
    "UniversalSegmentation": _masks,
    "InstanceSegmentation": _masks,
    "ObjectDetection": _objects,
    "DepthEstimation": _depths,
    "MaskedImageModeling": _masked_patches,
    "PreTraining": _pretraining,
    "CTC": _few_words,
    "RNNT": _transducer,
    "TDT": _transducer,
    "Prediction": _future,
    "Regression": _nothing,
    "TimeSeriesClassification": _classes,
}
