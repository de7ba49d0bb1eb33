"""trl's SFTTrainer, on a model of ours and texts that are tokens already.

It packs or pads them, makes labels and adds the adapter itself, each version in its own way.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from torch import nn

from memgate.errors import InputError
from memgate.jobspec import JobSpec
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.adapters import make_config
from memgate_worker.jobs.between_steps import NUM_EVALUATION_BATCHES, Saving
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.loop import evaluation_task, place, ready
from memgate_worker.jobs.models import WithoutFilling
from memgate_worker.jobs.tasks.task import Batch
from memgate_worker.jobs.trainers.hf import (
    count_batches,
    make_callbacks,
    make_trainer_class,
    train,
)
from memgate_worker.jobs.trainers.settings import make_arguments

#: texts that are laid end to end in a packed sequence
_TEXTS_IN_A_SEQUENCE = 4

#: ends of classes that are causal language models
_CAUSAL = ("ForCausalLM", "LMHeadModel")


class SftJob:
    """A job that SFTTrainer runs."""

    def __init__(self, spec: JobSpec, model: nn.Module, saving: Saving) -> None:
        """Make the model as it is given to SFTTrainer."""
        self._datasets = need_library("datasets", "trainer")
        self._trl = need_library("trl.trainer.sft_trainer", "trainer")
        self._spec, model, tasks = ready(spec, model)
        _check(self._spec, model, tasks[0].batch)
        self._evaluated = evaluation_task(self._spec, model, tasks).batch
        self._token = int(tasks[0].batch["input_ids"][0, 0])
        self._lengths = [task.batch["input_ids"].shape[1] for task in tasks]
        # What SFTTrainer is asked for below is left out here.
        bare = {"lora": None, "gradient_checkpointing": False}
        device = "cpu" if spec.quantization is None else "cuda"
        self._model = place(self._spec.model_copy(update=bare), model, device)
        self._trainer_class = make_trainer_class(self._trl.SFTTrainer, self._spec, saving)

    def run(self) -> None:
        """Run SFTTrainer's own loop."""
        with tempfile.TemporaryDirectory() as folder:
            with WithoutFilling():
                trainer = self._make_trainer(Path(folder))
            train(trainer, self._spec)

    def _make_trainer(self, folder: Path) -> Any:
        spec = self._spec
        lora = spec.lora
        arguments = make_arguments(
            self._trl.SFTConfig,
            spec,
            folder,
            packing=spec.packing,
            **_limit(self._trl.SFTConfig, max(self._lengths)),
            # texts that are put together at a time: there need be no more than are used
            num_of_sequences=spec.batch_size,
        )
        takes = inspect.signature(self._trl.SFTTrainer.__init__).parameters
        tokenizer = "processing_class" if "processing_class" in takes else "tokenizer"
        try:
            return self._trainer_class(
                model=self._model,
                args=arguments,
                train_dataset=self._texts(self._lengths, spec.batch_size, count_batches(spec)),
                eval_dataset=self._evaluation(),
                peft_config=make_config(lora, self._model) if lora is not None else None,
                callbacks=make_callbacks(spec, self._evaluated),
                **{tokenizer: _make_tokenizer()},
            )
        except (TypeError, ValueError) as error:
            rule = f"{spec.trainer.full_name} refuses the job: {' '.join(str(error).split())}"
            mistake = Mistake(field="trainer", value=show_value(spec.trainer.value), rule=rule)
            raise InputError.from_mistakes(mistake) from error

    def _evaluation(self) -> Any:
        spec = self._spec.eval
        if spec is None:
            return None
        batch_size = spec.batch_size or self._spec.batch_size
        return self._texts([max(self._lengths)], batch_size, NUM_EVALUATION_BATCHES)

    def _texts(self, batches: Sequence[int], batch_size: int, num_batches: int) -> Any:
        """Return texts as tokens: short ones to be packed, or batches with some padding."""
        if self._spec.packing and not _packs_tokens():
            rows = [[self._token] * batches[0]] * (batch_size * num_batches)
            return self._datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
        if self._spec.packing:
            short = max(1, batches[0] // _TEXTS_IN_A_SEQUENCE)
            num_texts = -(-batches[0] // short) * batch_size * num_batches
            lengths = [short] * num_texts
        else:
            # as in every batch of text, one is the longest, and the others are padded
            lengths = [
                length if is_longest else max(1, length - 1)
                for length in islice(cycle(batches), num_batches)
                for is_longest in [True, *[False] * (batch_size - 1)]
            ]
        texts = {length: [self._token] * length for length in set(lengths)}
        return self._datasets.Dataset.from_dict({"input_ids": [texts[one] for one in lengths]})


def _packs_tokens() -> bool:
    """Say whether trl packs texts that are tokens; before 0.13 it took them as they are."""
    major, minor = (int(part) for part in version("trl").split(".")[:2])
    return (major, minor) >= (0, 13)


def _check(spec: JobSpec, model: nn.Module, batch: Batch) -> None:
    name = type(model).__name__
    if not name.endswith(_CAUSAL) or not batch.keys() <= {"input_ids", "attention_mask", "labels"}:
        mistake = Mistake(
            field="trainer",
            value=show_value(spec.trainer.value),
            rule=f"{spec.trainer.full_name} trains causal language models, and {name} is not one",
            next_step="use the trainer 'hf'",
        )
        raise InputError.from_mistakes(mistake)


def _limit(kind: type[Any], length: int) -> dict[str, int]:
    """Return how long sequences may be, as versions before 0.16 and after call it."""
    return {"max_length" if hasattr(kind, "max_length") else "max_seq_length": length}


def _make_tokenizer() -> Any:
    """Return a tokenizer that knows no words: it is asked to pad, and what ends a text."""
    tokenizers = need_library("tokenizers", "trainer")
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    return need_library("transformers", "trainer").PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model),
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="right",
    )
