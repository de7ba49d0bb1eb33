"""The paper's evaluation as a report."""

from __future__ import annotations

from dataclasses import replace

from memgate.accuracy import Prediction, published_prediction
from memgate.decision import Decision
from memgate.evaluation.report import Evaluated, write_report
from tests.unit.memgate.evaluation.runs import make_run

RUNS = [
    make_run(
        model=model,
        batch_size=batch,
        optimizer=optimizer,
        ground_bytes=ground,
        xmem_bytes="550",
        xmem_oom=oom,
        xmem_2nd_oom="false",
    )
    for model, batch, optimizer, ground, oom in (
        ("VGG16", "8", "Adam", "500", "false"),
        ("VGG16", "80", "SGD", "540", "false"),
        ("VGG16", "800", "Adam", "520", "true"),
        ("VGG16", "9", "SGD", "501", "false"),
        ("owner/gpt2", "8", "Adam", "400", "false"),
        ("owner/gpt2", "200", "SGD", "450", "false"),
        ("owner/gpt2", "10", "Adam", "520", "false"),
        ("owner/gpt2", "9", "SGD", "530", "false"),
    )
]


def _ours(seconds: float) -> Evaluated:
    said = Prediction(
        bytes=505, runs_out=False, seconds=seconds, capped=(), decision=Decision.ADMIT
    )
    unsure = replace(said, decision=Decision.UNCERTAIN)
    return Evaluated("phantom", "phantom", RUNS, [said] * (len(RUNS) - 1) + [unsure])


def _published() -> Evaluated:
    said = [published_prediction(run, "xmem") for run in RUNS]
    return Evaluated("xmem", "xMem", RUNS, said, is_published=True)


def test_the_report_has_every_part_of_the_papers_evaluation() -> None:
    """With the paper's figures beside ours, and the product's verdicts beside the replay's."""
    text = write_report([_ours(1.0), _published()], ["images/scores.png"], "torch-2.6")

    for title in (
        *("All rows", "Verdicts at the cards' own sizes", "Beside the paper's own figures"),
        *("By optimizer", "By GPU", "Four quadrants", "Performance scores"),
        *("Analysis of variance", "Pictures", "Times"),
    ):
        assert f"\n### {title}\n" in text
    assert "| xMem | the paper | 6.68 % | 5.93 % | 5.69 | 0.11 | 0.17 |" in text
    assert "| phantom | 7 | 0 | 1 | 0 | 0 |" in text
    assert "| phantom, replay alone | 8 |" in text
    assert "xMem rejects 1 jobs" in text
    assert "![scores](images/scores.png)" in text


def test_the_same_predictions_give_the_same_report_but_for_times() -> None:
    """Byte for byte, up to the last section."""
    texts = [write_report([_ours(seconds), _published()], [], "x") for seconds in (1.0, 2.0)]

    before = [text.partition("\n### Times\n")[0] for text in texts]
    assert before[0] == before[1]
    assert texts[0] != texts[1]


def test_what_is_not_there_leaves_no_part() -> None:
    """Engines alone have no paper, and rows without errors no variance."""
    died = make_run(real_oom="true")
    said = Prediction(bytes=None, runs_out=None, seconds=None, capped=())

    text = write_report([Evaluated("phantom", "phantom", [died], [said])], [], "torch-2.6")

    assert "Beside the paper" not in text
    assert "### Pictures" not in text
    assert "| phantom | 0 |  |  |  |  |  | 0 |  |  |  |" in text


def test_an_unknown_published_estimator_has_no_xmem_to_speak_of() -> None:
    """The sentence on xMem's own verdicts says so."""
    alone = replace_name(_published(), "dnnmem")

    assert "its *P* would be unknown" in write_report([alone], [], "torch-2.6")


def replace_name(one: Evaluated, name: str) -> Evaluated:
    """Return the same predictions under another name."""
    return Evaluated(name, name, one.runs, one.said, is_published=True)
