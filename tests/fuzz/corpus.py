"""The inputs that are kept, tests/data/fuzz/TARGET.zip, and those to begin with."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from memgate.timeline_file.document import HEADER_BYTES
from memgate.timeline_file.writing import write_timeline
from memgate.units import MIB
from tests.admission import make_job, make_pod, make_review
from tests.conftest import DATA
from tests.gpu_traces import GpuTrace
from tests.snapshots import (
    MODEL,
    OPTIMIZER,
    make_block,
    make_document,
    make_event,
    make_free,
    make_segment,
)
from tests.timeline_files import FIRST_FORMAT, make_plain, make_recorded

ROOT = Path(__file__).parents[2]
KEPT = DATA / "fuzz"

#: of an input, and of how many for each target
MAX_INPUT_BYTES = 16_384
_MAX_KEPT = 200


def read_kept(target: str) -> dict[str, bytes]:
    """Return the inputs that are kept for a target, by name."""
    if not (KEPT / f"{target}.zip").exists():
        return {}
    with zipfile.ZipFile(KEPT / f"{target}.zip") as kept:
        return {name: kept.read(name) for name in kept.namelist()}


def keep(target: str, inputs: Iterable[bytes]) -> int:
    """Keep inputs, the smallest if they are too many; return how many that are."""
    chosen = sorted({*inputs}, key=lambda data: (len(data), data))[:_MAX_KEPT]
    KEPT.mkdir(exist_ok=True)
    with zipfile.ZipFile(KEPT / f"{target}.zip", "w", zipfile.ZIP_DEFLATED) as kept:
        for data in chosen:
            name = hashlib.sha256(data).hexdigest()[:16]
            kept.writestr(zipfile.ZipInfo(name), data, compress_type=zipfile.ZIP_DEFLATED)
    return len(chosen)


def make_seeds(target: str) -> list[bytes]:
    """Make inputs that a target takes, small ones: what it is meant for."""
    return {
        "trace": _traces,
        "snapshot": _snapshots,
        "timeline": _timelines,
        "settings": _settings,
        "spec": _specs,
        "question": _questions,
        "webhook": _reviews,
    }[target]()


def _traces() -> list[bytes]:
    trace = GpuTrace()
    trace.alloc(0x9000, 8 * MIB)
    for _ in range(2):
        trace.iteration(activations=4 * MIB, gradients=2 * MIB)
    gpu = trace.to_bytes()
    several = GpuTrace(before_bytes=MIB, reserved_bytes=2 * MIB)
    with several.forward():
        several.alloc(0x1000, MIB, device=1)
        several.alloc(0x1000, MIB)
    return [gpu, _of_a_cpu(trace), several.to_bytes()]


def _of_a_cpu(trace: GpuTrace) -> bytes:
    """Make the same program run on a CPU, in two iterations."""
    document = json.loads(trace.to_bytes())
    events = document["traceEvents"]
    for event in events:
        event.setdefault("args", {}).pop("Total Reserved", None)
        if "Device Type" in event["args"]:
            event["args"]["Device Type"] = 0
    for number, begin in enumerate((0, len(events) // 2)):
        span = {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ph": "X", "tid": 7}
        events.append(span | {"ts": events[begin]["ts"], "dur": len(events) // 2})
    return json.dumps(document | {"deviceProperties": [], "record_shapes": 1}).encode()


def _snapshots() -> list[bytes]:
    segment = make_segment(make_block(frames=MODEL), make_block(state="inactive", frames=OPTIMIZER))
    events = [make_event("alloc"), *make_free(), make_event("segment_alloc", size=2 * MIB)]
    documents = [
        make_document([segment], [make_event("alloc")], conf="expandable_segments:True"),
        make_document([], events),
        make_document([segment], events, [make_event("alloc"), make_event("oom")]),
    ]
    return [pickle.dumps(one, protocol=protocol) for one in documents for protocol in (2, 4)]


def _timelines() -> list[bytes]:
    files = [write_timeline(make_recorded()), write_timeline(make_plain())]
    files.append(FIRST_FORMAT.read_bytes())
    return [zlib.decompress(file[HEADER_BYTES:]) for file in files]


def _settings() -> list[bytes]:
    lines = (DATA / "alloc_conf.jsonl").read_text().splitlines()
    return [json.loads(line)["config"].encode() for line in lines]


def _specs() -> list[bytes]:
    found = [*(ROOT / "deploy" / "examples").glob("resnet50.json")]
    found += (ROOT / "deploy" / "examples").glob("gpt2.yaml")
    return [path.read_bytes() for path in found] + [json.dumps(job).encode() for job in _jobs()]


def _jobs() -> Iterator[dict[str, object]]:
    words = {"model": {"source": "transformers", "name": "gpt2"}, "batch_size": 4}
    yield words | {"input": {"sequence_length": [128, 256]}, "precision": "amp-bf16"}
    yield words | {
        "input": {"sequence_length": 512},
        "optimizer": {"name": "AdamW", "kwargs": {"lr": 0.1, "betas": [0.9, 0.99]}},
        "trainer": "hf",
        "attention": "sdpa",
        "lora": {"rank": 8, "alpha": 16, "target_modules": ["c_attn"]},
        "gradient_accumulation_steps": 2,
        "eval": {"batch_size": 8},
        "compile": True,
    }
    yield words | {
        "input": {"tensors": {"input_ids": {"shape": [128], "dtype": "int64"}}},
        "distributed": {"strategy": "fsdp2", "world_size": 8, "gpus_per_node": 4},
        "quantization": "nf4",
        "allocator": "expandable_segments:True",
    }


def _questions() -> list[bytes]:
    gpus: list[object] = ["t4", {"memory_bytes": 1 << 34, "compute_capability": "8.6"}]
    gpus.append({"name": "a100-80", "count": 8, "already_used_bytes": 1 << 20})
    asked = [{"job": job, "gpu": gpu} for job in _jobs() for gpu in gpus]
    return [(ROOT / "deploy" / "examples" / "request.json").read_bytes()] + [
        json.dumps(question).encode() for question in asked
    ]


def _reviews() -> list[bytes]:
    recorded = [path.read_bytes() for path in sorted((DATA / "reviews").glob("*.json"))]
    pod = make_pod()
    made = [make_review(pod), make_review(make_job(pod, suspend=True), "Job", "batch")]
    made.append(make_review(pod, operation="UPDATE", oldObject=make_pod(annotations={})))
    return [data for data in recorded if len(data) < MAX_INPUT_BYTES] + [
        json.dumps(review).encode() for review in made
    ]
