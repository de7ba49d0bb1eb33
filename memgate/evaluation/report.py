"""What estimators said about measured runs -> the paper's evaluation, as one Markdown report.

The same runs and predictions give the same bytes. Only the last section, on times, differs from
one run of the command to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from memgate.accuracy import MeasuredRun, Prediction
from memgate.decision import Decision
from memgate.evaluation.anova import analyze_variance
from memgate.evaluation.equations import (
    Score,
    Trial,
    find_percentile,
    list_scores,
    score_groups,
    score_trials,
    try_estimates,
)
from memgate.evaluation.markdown import gigabytes, number, percent, table
from memgate.evaluation.paper import PAPER
from memgate.evaluation.verdicts import VerdictCounts, count_verdicts


@dataclass(frozen=True)
class Evaluated:
    """One estimator and what it said about each run."""

    #: as it is called in files
    name: str
    #: as people write it
    label: str
    runs: Sequence[MeasuredRun]
    said: Sequence[Prediction]
    #: its predictions come with the runs, from a paper
    is_published: bool = False

    @cached_property
    def trials(self) -> list[Trial]:
        """What came of its estimates."""
        return try_estimates(self.runs, self.said)

    @cached_property
    def score(self) -> Score:
        """The paper's figures over all rows."""
        return score_trials(self.trials)

    @property
    def verdicts(self) -> VerdictCounts:
        """Its decisions at the cards' own sizes."""
        pairs = zip(self.runs, self.said, strict=True)
        return count_verdicts(
            (said.decision, run.ran_out) for run, said in pairs if said.decision is not None
        )

    def by(self, key: Callable[[MeasuredRun], str]) -> dict[str, Score]:
        """Return its figures in groups of runs."""
        return score_groups(self.trials, key)

    def as_replay(self) -> Evaluated:
        """Return it without the product's verdicts: a job dies if its replay does."""
        said = [replace(one, decision=None) for one in self.said]
        return Evaluated(self.name, f"{self.label}, replay alone", self.runs, said)


def optimizer_of(run: MeasuredRun) -> str:
    """Return the name of a run's optimizer."""
    return run.spec.optimizer.name


def model_of(run: MeasuredRun) -> str:
    """Return the name of a run's model, without its owner."""
    return run.model.rpartition("/")[2]


def gpu_of_run(run: MeasuredRun) -> str:
    """Return the name of a run's GPU as people say it."""
    return run.gpu.removeprefix("NVIDIA ").removeprefix("GeForce ")


def batch_of(run: MeasuredRun) -> str:
    """Return the class of a run's batch size: the analysis of variance needs levels."""
    batch = run.spec.batch_size
    return next((f"up to {most}" for most in (10, 50, 100, 300) if batch <= most), "beyond 300")


#: of the analysis of variance
FACTORS: dict[str, Callable[[MeasuredRun], str]] = {
    "model": model_of,
    "optimizer": optimizer_of,
    "batch size": batch_of,
    "GPU": gpu_of_run,
}


def combination_of(run: MeasuredRun) -> str:
    """Return what a performance score is computed for: a model with an optimizer."""
    return f"{model_of(run)}, {optimizer_of(run)}"


def write_report(evaluated: Sequence[Evaluated], pictures: Sequence[str], runtime: str) -> str:
    """Return the report; ``pictures`` are paths of files, relative to it."""
    lines = [
        *_describe(evaluated[0].runs, runtime),
        *_overall(evaluated),
        *_verdicts(evaluated),
        *_beside_the_paper(evaluated),
        *_groups("By optimizer", "optimizer", optimizer_of, evaluated),
        *_groups("By GPU", "GPU", gpu_of_run, evaluated),
        *_quadrants(evaluated),
        *_distribution(evaluated),
        *_variance(evaluated),
        *_draw(pictures),
        *_times(evaluated),
    ]
    return "\n".join(lines) + "\n"


def _describe(runs: Sequence[MeasuredRun], runtime: str) -> list[str]:
    lived = sum(not run.ran_out for run in runs)
    capped = [cap for run in runs for cap in run.capped]
    return [
        f"{len(runs)} measured jobs, of which {lived} lived and {len(runs) - lived} ran out of"
        f" memory, and {len(capped)} further runs of them under caps, of which"
        f" {sum(cap.died for cap in capped)} died. Engines ran with {runtime}.",
        "",
        "*P* is the probability of estimation failure: *first*, of a wrong verdict at the card's"
        " own size; *second*, of that or of a death in the job's own estimate. Nobody ran jobs in"
        " our estimates, so capped runs stand in: a job lives if it lived at that cap or a lower"
        " one, dies if it died at that cap or a higher one, and is left out between. Uncertain"
        " verdicts are left out of *P*, and counted beside it. Memory conserved is the card less"
        " the estimate, the whole card for a job rightly rejected, and minus the card for a wrong"
        " answer. The score is 0.7 *P* + 0.3 median error; lower is better. 1 GB is 10^9 bytes.",
    ]


def _overall(evaluated: Sequence[Evaluated]) -> list[str]:
    replays = [
        one.as_replay()
        for one in evaluated
        if any(said.decision is Decision.UNCERTAIN for said in one.said)
    ]
    head = (
        *("estimator", "estimates", "median error", "p90", "uncertain", "P first", "P second"),
        *("of", "GB conserved", "score first", "score second"),
    )
    return ["", "### All rows", "", *table(head, map(_overall_row, [*evaluated, *replays]))]


def _overall_row(one: Evaluated) -> list[str]:
    score, counts = one.score, one.verdicts
    uncertain = counts.uncertain / counts.total if counts.total else None
    return [
        one.label,
        str(score.trials),
        percent(score.median_error, 2),
        percent(find_p90(one.trials)),
        percent(uncertain),
        percent(score.first_failure),
        percent(score.second_failure),
        str(score.second_decided),
        gigabytes(score.saved_bytes),
        number(score.first_score, 3),
        number(score.second_score, 3),
    ]


def find_p90(trials: Sequence[Trial]) -> float | None:
    """Return the error that 90 % of the rows do not exceed."""
    errors = sorted(trial.error for trial in trials if trial.error is not None)
    return errors[ceil(0.9 * len(errors)) - 1] if errors else None


def _verdicts(evaluated: Sequence[Evaluated]) -> list[str]:
    names = ("admit, lived", "admit, died", "uncertain", "reject, lived", "reject, died")
    rows = []
    for one in evaluated:
        counts = one.verdicts
        figures = (counts.admit_lived, counts.admit_died, counts.uncertain)
        ends = (counts.reject_lived, counts.reject_died)
        rows.append([one.label, *map(str, (*figures, *ends))])
    return [
        *("", "### Verdicts at the cards' own sizes", ""),
        *table(("estimator", *names), rows),
    ]


def _beside_the_paper(evaluated: Sequence[Evaluated]) -> list[str]:
    head = (
        *("estimator", "", "error, SGD", "error, Adam", "GB conserved"),
        *("95 % of scores, first", "second"),
    )
    rows = []
    for one in evaluated:
        if one.is_published:
            rows += [_paper_row(one), _recomputed_row(one)]
    if not rows:
        return []
    return [
        *("", "### Beside the paper's own figures", ""),
        *table(head, rows),
        "",
        "The equations are the same, the rows are not: the paper's are of an RTX 4060 and a 4070 Ti"
        " with torch 2.3.1, on CNNs; these are of an RTX 3060, a 4060 and an A100 with torch 2.6,"
        " language models among them, and not all that its authors have published. A score is that"
        " of a model with an optimizer here; the paper does not say of what its are. Second errors"
        " are those of runs that lived in the estimate, so an estimator whose low estimates died"
        " looks better by them. The first"
        " validation uses the verdicts that the rows state: xMem rejects"
        f" {_stated_otherwise(evaluated)} jobs whose estimates would fit on the card, since its"
        " simulator ran out of memory before; by its estimates alone its *P* would be"
        f" {_by_estimates_alone(evaluated)}.",
    ]


def _paper_row(one: Evaluated) -> list[str]:
    paper = PAPER[one.name]
    return [
        one.label,
        "the paper",
        percent(paper.sgd_error, 2),
        percent(paper.adam_error, 2),
        number(paper.saved_gb),
        number(paper.first_score_95),
        number(paper.second_score_95),
    ]


def _recomputed_row(one: Evaluated) -> list[str]:
    by_optimizer, by_pair = one.by(optimizer_of), one.by(combination_of).values()
    errors = [by_optimizer[name] for name in ("SGD", "Adam") if name in by_optimizer]
    return [
        "",
        "these rows",
        *(percent(score.median_error, 2) for score in errors),
        *[""] * (2 - len(errors)),
        gigabytes(one.score.saved_bytes),
        number(find_percentile(list_scores(by_pair, second=False), 0.95)),
        number(find_percentile(list_scores(by_pair, second=True), 0.95)),
    ]


def _find_xmem(evaluated: Sequence[Evaluated]) -> Evaluated | None:
    return next((one for one in evaluated if one.is_published and one.name == "xmem"), None)


def _stated_otherwise(evaluated: Sequence[Evaluated]) -> int:
    one = _find_xmem(evaluated)
    pairs = [] if one is None else zip(one.runs, one.said, strict=True)
    return sum(
        bool(said.runs_out) and said.bytes is not None and said.bytes <= run.total_bytes
        for run, said in pairs
    )


def _by_estimates_alone(evaluated: Sequence[Evaluated]) -> str:
    one = _find_xmem(evaluated)
    if one is None:
        return "unknown"
    score = score_trials(try_estimates(one.runs, one.said, by_equation=True))
    return f"{percent(score.first_failure)} (first) and {percent(score.second_failure)} (second)"


def _groups(
    title: str, name: str, key: Callable[[MeasuredRun], str], evaluated: Sequence[Evaluated]
) -> list[str]:
    found = [one.by(key) for one in evaluated]
    groups = sorted({group for by in found for group in by})
    rows = [[group, *(_cell(by.get(group)) for by in found)] for group in groups]
    return [
        *("", f"### {title}", "", "Median error, and *P* of the second validation.", ""),
        *table((name, *(one.label for one in evaluated)), rows),
    ]


def _cell(score: Score | None) -> str:
    if score is None or score.median_error is None:
        return ""
    failure = percent(score.second_failure, 0)
    return f"{percent(score.median_error)}, {failure}" if failure else percent(score.median_error)


def _quadrants(evaluated: Sequence[Evaluated]) -> list[str]:
    names = ("optimal", "underestimation", "overestimation", "worst")
    rows = []
    for one in evaluated:
        found = [score.quadrant for score in one.by(model_of).values()]
        rows.append([one.label, *(str(found.count(name)) for name in names)])
    return [
        *("", "### Four quadrants", ""),
        "Models by *P* of the second validation and median error, each below or above 20 %.",
        *("", *table(("estimator", *names), rows)),
    ]


def _distribution(evaluated: Sequence[Evaluated]) -> list[str]:
    rows = []
    for one in evaluated:
        by_pair = one.by(combination_of).values()
        for name, second in (("first", False), ("second", True)):
            scores = list_scores(by_pair, second=second)
            shares = (find_percentile(scores, share) for share in (0.5, 0.75, 0.95))
            rows.append(
                [one.label, name, str(len(scores)), *(number(share, 3) for share in shares)]
            )
    head = ("estimator", "validation", "scores", "50 %", "75 %", "95 %")
    return [
        *("", "### Performance scores", ""),
        "Of each model with each optimizer: the share of scores that are no larger.",
        *("", *table(head, rows)),
    ]


def _variance(evaluated: Sequence[Evaluated]) -> list[str]:
    head = ("estimator", "factor", "degrees of freedom", "F", "p", "explains")
    return [
        *("", "### Analysis of variance", ""),
        "Of the relative errors: what each factor explains beside the others (type II, without"
        " interactions; *explains* is partial eta squared). Levels with single rows make the design"
        " unbalanced, so read it as a description of these rows.",
        *("", *table(head, [row for one in evaluated for row in _effects(one)])),
    ]


def _effects(one: Evaluated) -> list[list[str]]:
    trials = [trial for trial in one.trials if trial.error is not None]
    found = analyze_variance(
        [trial.error or 0.0 for trial in trials],
        {name: [key(trial.run) for trial in trials] for name, key in FACTORS.items()},
    )
    if found is None:
        return []
    return [
        [
            one.label,
            effect.factor,
            f"{effect.degrees}, {found.rest_degrees}",
            number(effect.f_value),
            "< 0.001" if effect.p_value < 0.001 else number(effect.p_value, 3),
            percent(effect.share),
        ]
        for effect in found.effects
    ]


def _draw(pictures: Sequence[str]) -> list[str]:
    lines = ["", "### Pictures"] if pictures else []
    for path in pictures:
        title = path.rpartition("/")[2].removesuffix(".png").replace("-", " ")
        lines += ["", f"![{title}]({path})"]
    return lines


def _times(evaluated: Sequence[Evaluated]) -> list[str]:
    rows = [[one.label, number(one.score.seconds)] for one in evaluated]
    return [
        *("", "### Times", ""),
        "Mean seconds per estimate: ours on this machine, those of published estimators on their"
        " authors'. Nothing else in this report differs from run to run.",
        *("", *table(("estimator", "seconds"), rows)),
    ]
