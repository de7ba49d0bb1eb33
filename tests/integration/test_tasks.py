"""What a model takes and how its loss is made follow from the model: a sample of 60, by task.

All of them are asked about by ``make breadth-tasks``.
"""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError, UnsupportedJobError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.runtimes.runtime import read_runtimes
from tests.bench.breadth_tasks import ANSWERED, ask, list_jobs

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

SAMPLE = {
    "transformers": [
        *("AlbertForPreTraining", "BeitForMaskedImageModeling", "BertForMaskedLM"),
        *("BertForMultipleChoice", "BertForNextSentencePrediction", "BertForQuestionAnswering"),
        *("BertForSequenceClassification", "BertForTokenClassification"),
        *("BlipForImageTextRetrieval", "Data2VecAudioForCTC", "Data2VecAudioForXVector"),
        *("Data2VecAudioForAudioFrameClassification", "DetrForObjectDetection"),
        *(
            "DetrForSegmentation",
            "EomtForUniversalSegmentation",
            "FlaubertForQuestionAnsweringSimple",
        ),
        *("GPT2ForSequenceClassification", "InformerForPrediction", "LlamaForCausalLM"),
        *(
            "LukeForEntityClassification",
            "LukeForEntitySpanClassification",
            "MBartForConditionalGeneration",
        ),
        *("MgpstrForSceneTextRecognition", "MobileNetV2ForImageClassification"),
        *(
            "MobileNetV2ForSemanticSegmentation",
            "Owlv2ForObjectDetection",
            "PatchTSMixerForRegression",
        ),
        *("PatchTSMixerForTimeSeriesClassification", "InternVLForConditionalGeneration"),
        *("Siglip2ForImageClassification", "SpeechT5ForTextToSpeech", "T5ForConditionalGeneration"),
        *(
            "TimesFmModelForPrediction",
            "TimesformerForVideoClassification",
            "ViTForImageClassification",
        ),
        *("VisualBertForVisualReasoning", "Wav2Vec2BertForCTC", "WhisperForConditionalGeneration"),
        *("LevitForImageClassificationWithTeacher", "LlavaForConditionalGeneration"),
    ],
    "torchvision": [
        *("alexnet", "deeplabv3_mobilenet_v3_large", "fcos_resnet50_fpn", "googlenet"),
        *("inception_v3", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "mc3_18"),
        *("raft_small", "ssdlite320_mobilenet_v3_large", "swin3d_t", "vit_b_32"),
    ],
    "timm": [
        *("convnext_atto", "deit_tiny_distilled_patch16_224", "efficientnet_b0", "levit_128"),
        *(
            "mobilenetv3_small_050",
            "resnet18",
            "swin_tiny_patch4_window7_224",
            "xcit_nano_12_p8_224",
        ),
    ],
}


@pytest.mark.parametrize("library", SAMPLE)
def test_models_of_all_tasks_are_answered(engine: PhantomEngine, library: str) -> None:
    """Inputs and labels are made for each; no model is refused."""
    jobs = list_jobs(RUNTIME, library, SAMPLE[library])
    said = {name: ask(engine, specs) for name, specs in jobs.items()}

    assert {name: why for name, why in said.items() if why != ANSWERED} == {}


#: which say only when they fail what they lack: codes of sound, tiles of images, documents that
#: were found, patches of all images in a row or of each in its own, names of what is looked for,
#: several tokens at once, labels for each of several codes, spectrograms with their frames last or
#: put together by the model itself, images of several cameras, sizes that timm is given
TRIED_OUT = [
    *("MoshiForConditionalGeneration", "MllamaForConditionalGeneration", "RagTokenForGeneration"),
    *("NeoMMEForRetrieval", "MMGroundingDinoForObjectDetection", "ColQwen2ForRetrieval"),
    *("KyutaiSpeechToTextForConditionalGeneration", "ClvpModelForConditionalGeneration"),
    *("CsmForConditionalGeneration", "DiaForConditionalGeneration", "FlavaForPreTraining"),
    *("Nemotron3DiarizationForAudioFrameClassification", "PI0ForConditionalGeneration"),
    "PerceptionLMForConditionalGeneration",
]


@pytest.mark.slow
def test_what_a_model_turns_out_to_lack_is_made(engine: PhantomEngine) -> None:
    """By its own message, or by the line in which it fails."""
    jobs = list_jobs(RUNTIME, "transformers", TRIED_OUT)

    assert {name: ask(engine, specs) for name, specs in jobs.items()} == dict.fromkeys(
        TRIED_OUT, ANSWERED
    )


def test_the_sample_has_sixty_models() -> None:
    """Enough to have one of each task."""
    assert sum(map(len, SAMPLE.values())) == 60


def _ask(engine: PhantomEngine, class_name: str, given: dict[str, Any]) -> None:
    model = {"source": "transformers", "class": class_name}
    spec = parse_job_spec({"model": model, "input": given, "batch_size": 2, "iterations": 1})
    engine.trace(spec, find_gpu("a100-40"))


TOKENS = {"shape": [32], "dtype": "int64"}


def test_a_model_takes_tensors_by_name(engine: PhantomEngine) -> None:
    """What we would make of it is described instead; labels follow the task."""
    _ask(engine, "BertForTokenClassification", {"tensors": {"input_ids": TOKENS}})
    _ask(
        engine, "ViTForImageClassification", {"tensors": {"pixel_values": {"shape": [3, 224, 224]}}}
    )


@pytest.mark.parametrize(
    ("class_name", "given", "want_message"),
    [
        (
            "BertForMaskedLM",
            {"tensors": {"input_id": TOKENS}},
            "takes no such argument; did you mean 'input_ids'?",
        ),
        (
            "SegformerForSemanticSegmentation",
            {"tensors": {"labels": {"shape": [64, 64], "dtype": "int64"}}},
            "input.tensors.pixel_values is missing: SegformerForSemanticSegmentation requires it",
        ),
        ("BertForMaskedLM", {}, "takes text, and its length decides what it needs; give it"),
        ("BertForMaskedLM", {"shape": [3, 8, 8]}, "takes no images; give 'sequence_length'"),
        ("ViTForImageClassification", {"sequence_length": 8}, "takes no sequences; give 'shape'"),
    ],
)
def test_an_input_that_a_model_does_not_take_is_refused(
    engine: PhantomEngine, class_name: str, given: dict[str, Any], want_message: str
) -> None:
    """By the field, with what the model does take."""
    with pytest.raises(InputError) as raised:
        _ask(engine, class_name, given)

    assert want_message in raised.value.message


def test_a_model_that_cannot_be_fed_is_not_blamed_on_the_job(engine: PhantomEngine) -> None:
    """The answer says what is missing, and how it can be described."""
    with pytest.raises(UnsupportedJobError) as raised:
        _ask(engine, "OmDetTurboForObjectDetection", {})

    assert "it requires classes_attention_mask, classes_input_ids" in raised.value.message
    assert "describe it in 'input.tensors'" in raised.value.message
