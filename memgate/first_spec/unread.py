"""What a script does that changes its memory, and that the rest of this room does not read.

Each becomes a field where one call says it all, and otherwise a doubt: a first spec that is silent
about it would be that of another job.
"""

from __future__ import annotations

from collections.abc import Iterator

from memgate.first_spec.finding import Findings
from memgate.first_spec.source import Source

#: what transformers calls it -> what a spec does
_ATTENTION = {"flash_attention_2": "flash", "sdpa": "sdpa", "eager": "eager"}

#: a public name mostly stands for this head
USUAL_HEAD = "ForCausalLM"


def find_unread(findings: Findings, source: Source) -> None:
    """Add what is left of a script to its findings."""
    for call in source.calls:
        where = f"{call.last}(...) in line {call.line}"
        if call.last == "AveragedModel":
            findings.put("ema", True, where)
        attention = call.keywords.get("attn_implementation")
        if isinstance(attention, str):
            findings.put("attention", _ATTENTION.get(attention), where)
    findings.doubts += dict.fromkeys(_doubt(source, findings.spec.get("model", {}).get("class")))


def _doubt(source: Source, known: str | None) -> Iterator[str]:
    """Yield what is not certain; ``known`` is the class that is in the spec."""
    for call in source.calls:
        whole, _, _ = call.name.rpartition(".")
        owner = whole.rpartition(".")[2]
        is_loaded = call.last == "from_pretrained" and "For" in owner
        if is_loaded and not owner.endswith(USUAL_HEAD) and owner != known:
            yield (
                f"not certain: model: {owner} is loaded in line {call.line}, and a public name"
                " stands for the class that was published under it; if that has another head,"
                f" write class: {owner} beside 'name'"
            )
        if call.last == "Trainer" and "lightning" in call.name:
            yield (
                f"not certain: the arguments of Lightning's Trainer in line {call.line} (precision,"
                " accumulation, clipping, devices) are not read; write them in the spec, with"
                " trainer: lightning"
            )
        if call.last == "generate" and whole:
            yield (
                f"not certain: text is generated in line {call.line}; if between the steps of"
                ' training, write it as eval: {"generate": TOKENS}'
            )
