"""Which task a config of transformers' examples is for -> the class that the model is trained as.

A name alone gives the class that the model was published with: of an encoder, the masked language
model. Classifiers have another head, and no logits as wide as the vocabulary.
"""

from __future__ import annotations

from memgate.convert.draft import Draft
from memgate.convert.fields import names

_CLASSIFIER = "AutoModelForSequenceClassification"

#: the tasks of ``run_glue.py``, each of which classifies whole sequences
_GLUE = names("cola mnli mrpc qnli qqp rte sst2 stsb wnli")
_GLUE_DATASETS = ("glue", "nyu-mll/glue")

#: by ``task_type`` of peft
_LORA_TASKS = {"SEQ_CLS": _CLASSIFIER, "TOKEN_CLS": "AutoModelForTokenClassification"}

_PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")

_OPEN = (
    "it says what the model is trained for, and the spec has the class that goes with its name;"
    " give 'class' beside 'name', such as class: AutoModelForSequenceClassification"
)

#: fields that say a task, and not always which class
_SAY_A_TASK = ("task_name", "problem_type", "num_labels", "lora_task_type")


def put_task(draft: Draft) -> None:
    """Set the class of the model where the task is certain; a task that is not is named."""
    config = draft.config
    given = {name: config.get(name) for name in _SAY_A_TASK}
    if config.get("dataset_name") in _GLUE_DATASETS:
        given["dataset"] = config.get("dataset_config_name")
    found = _find_class(given)
    if found:
        draft.spec["model"] |= {"class": found}
        return
    for name in _SAY_A_TASK:
        if given[name] not in (None, "CAUSAL_LM"):
            config.refuse(name, _OPEN)


def _find_class(given: dict[str, object]) -> str | None:
    tasks = [str(given.get(name)).lower().replace("-", "") for name in ("task_name", "dataset")]
    if given["problem_type"] in _PROBLEMS or _GLUE.intersection(tasks):
        return _CLASSIFIER
    return _LORA_TASKS.get(str(given["lora_task_type"]))
