"""The words of an answer, each with its meaning: one source for the documentation and the pages.

``docs/glossary.md`` is the same text, and a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

from memgate.context import MAX_CONTEXT_BYTES, MIN_CONTEXT_BYTES, USUAL_CONTEXT_BYTES


class Term(NamedTuple):
    """A word, and what it means."""

    name: str
    #: of an estimate, as programs read it
    fields: tuple[str, ...]
    meaning: str

    @property
    def anchor(self) -> str:
        """How a link on a page names it."""
        return self.name.replace(" ", "-")


SIZES = (
    Term(
        "needs",
        ("needs_bytes", "upper_bound_bytes"),
        "What a job needs, the one headline number: the smallest memory in which it runs, with the"
        " measured margin and the largest CUDA context that has been reported. A job fits where"
        " this is not above what is available. The second name is the older one.",
    ),
    Term(
        "least",
        ("least_bytes",),
        "What a job needs without the margin and with the smallest CUDA context that has been"
        " reported. Where even this is above what is available, the job does not fit. Between least"
        " and needs the answer is uncertain.",
    ),
    Term(
        "required",
        ("required_bytes",),
        "The smallest memory in which the job still runs, with a CUDA context of the usual size and"
        " no margin. It is found by replaying the job at smaller and smaller capacities.",
    ),
    Term(
        "capacity",
        ("capacity_bytes",),
        "The memory of the GPU that programs can use, a little less than what is printed on it.",
    ),
    Term(
        "available",
        ("available_bytes",),
        "The capacity less what other processes already use (already_used_bytes of the question).",
    ),
    Term(
        "headroom",
        ("headroom_bytes",),
        "What is available less what the job needs; below zero where it is not enough.",
    ),
    Term(
        "peak",
        ("peak_bytes",),
        "The most that the job would take with ample memory: what the allocator reserves, the"
        " CUDA context, and what NCCL takes if it is used. It may be above what the job needs,"
        " because with less memory the allocator"
        " gives back what it has cached.",
    ),
    Term(
        "reserved",
        ("peak_reserved_bytes",),
        "What PyTorch's allocator has taken from the GPU, cached memory included;"
        " torch.cuda.max_memory_reserved() at the peak.",
    ),
    Term(
        "allocated",
        ("peak_allocated_bytes",),
        "What tensors hold, never more than what is reserved; torch.cuda.max_memory_allocated().",
    ),
    Term(
        "context",
        ("context_bytes",),
        "The CUDA context: what the driver, CUDA's libraries and loaded kernels take on the GPU"
        f" besides the allocator. It differs between machines, from {MIN_CONTEXT_BYTES // 10**6} to"
        f" {MAX_CONTEXT_BYTES // 10**6} MB; {USUAL_CONTEXT_BYTES // 10**6} MB is taken as the usual"
        " size.",
    ),
    Term(
        "bound",
        ("bound",),
        "How far the estimate may be off: the margin, and the measured runs that it is from; the"
        " range of the CUDA context; what workspaces of cuDNN that are not known may change. needs"
        " has the most of all, least the least.",
    ),
    Term(
        "communication",
        ("communication",),
        "What NCCL takes on the GPU for itself, outside the allocator: buffers for each channel and"
        " neighbour, kernels. It depends on how many GPUs talk to each other, and on the machine,"
        " so it is a range: the least is part of least, what is expected of the peak, the most of"
        " needs. Only of jobs with a process group of NCCL.",
    ),
    Term(
        "peak on the GPU",
        ("peak_on_gpu_bytes", "peak_reserved_on_gpu_bytes"),
        "The peak at the capacity of this GPU: what nvidia-smi would show for the process, and of a"
        " job that does not fit, what it held when it died. What jobs really took is compared with"
        " this.",
    ),
    Term(
        "out of memory",
        ("oom",),
        "Where the job would die on this GPU with a CUDA context of the usual size, and what"
        " PyTorch would say; null if it would live.",
    ),
)

BREAKDOWN = (
    Term(
        "breakdown",
        ("breakdown",),
        "What holds the memory at the peak with ample memory, by category: the CUDA context, of"
        " a job that uses NCCL communication, and the next nine, which add up to the peak.",
    ),
    Term("parameters", (), "The weights of the model, and its buffers."),
    Term("gradients", (), "Of the parameters."),
    Term("optimizer state", (), "What the optimizer keeps between steps, such as Adam's moments."),
    Term("activations", (), "Made in the forward pass and kept for the backward pass."),
    Term("batch", (), "The inputs and labels."),
    Term("temporary", (), "Tensors that are gone before their phase ends."),
    Term("workspace", (), "Scratch memory that a library such as cuBLAS keeps for itself."),
    Term("other", (), "Of a memory snapshot only: tensors whose stack does not say what they are."),
    Term(
        "fragmentation",
        (),
        "Reserved by the allocator and held by no tensor: cached, or lost by rounding and"
        " splitting.",
    ),
)

ANSWER = (
    Term("decision", ("decision",), "What is decided about a job on a GPU; one of the next four."),
    Term("admit", (), "It fits: what it needs is available."),
    Term(
        "uncertain",
        (),
        "It may fit: what is available lies between least and needs, or something about the run is"
        " in doubt. The explanation says which.",
    ),
    Term("reject", (), "It does not fit: even the least is not available."),
    Term(
        "unknown",
        (),
        "There is no answer, not yet or never for this GPU. An estimate never says this; an entry"
        " of fit may.",
    ),
    Term(
        "explanation",
        ("explanation",),
        "The answer in words, the same at every door: the headline, why, and what helps, the best"
        " first.",
    ),
    Term(
        "reasons",
        ("reasons",),
        "What decided, for programs: each has a stable code and a sentence; the first one decided.",
    ),
    Term(
        "recording",
        ("recording",),
        "Of a timeline file only: what was recorded (the command, the GPU, the training steps, the"
        " shapes of batches).",
    ),
    Term(
        "ranks",
        ("ranks", "world_size"),
        "Of a distributed job, which has one process for each GPU (world_size of them): the ranks"
        " that were run, and what each needs. The worst decides, and the rest of the answer is"
        " about it; ranks that were not run do what one of these does.",
    ),
    Term(
        "traffic",
        ("traffic",),
        "Bytes that a rank exchanges with the others in a training step, by kind (all_reduce,"
        " all_gather, ...): whole messages, whatever way they take.",
    ),
    Term(
        "phases of the job",
        ("phases",),
        "Of a command or a timeline file: the most that is allocated in each phase that was seen"
        " (load, train, evaluate, save), with the context; not what the allocator has cached.",
    ),
    Term(
        "advice",
        ("fits_on", "largest_batch_size"),
        "What would make a job fit: GPUs of the catalogue on which it fits as it is (none if it is"
        " in doubt), and the largest batch size that is admitted, looked for after a rejection.",
    ),
    Term("GPU", ("gpu",), "Its name in the catalogue, or the one that the question gave it."),
    Term(
        "job",
        ("id", "page"),
        "A question that a server has been asked. Its id is a digest of the question; its page"
        " shows the answer to people.",
    ),
    Term(
        "fault",
        (),
        "Whose fault it is that there is no answer: caller (change the question), job (it would"
        " fail on a GPU, too), unsupported (we cannot run it), operator (something is not installed"
        " or not configured), passing (ask again).",
    ),
)

ORIGIN = (
    Term(
        "engine",
        ("engine",),
        "What runs the job to see its memory: phantom (PyTorch's own CUDA code on a GPU that is not"
        " there), profile (on the CPU, or a trace of torch.profiler) or measured (a trace of a real"
        " GPU, whose own peaks are quoted).",
    ),
    Term(
        "runtime",
        ("runtime", "versions"),
        "The libraries that the job runs with, PyTorch among them, under a name: torch-2.14.",
    ),
    Term(
        "timeline",
        (),
        "Every allocation and free of a run, in order. A replay feeds it to the allocator: the same"
        " run answers for other capacities and other allocator settings.",
    ),
    Term(
        "timings",
        ("timings_ms",),
        "How long the answer took, in milliseconds; run is 0 where an earlier run was replayed.",
    ),
)

#: what the words are about, in the order in which a reader needs them
GLOSSARY = {
    "Sizes": SIZES,
    "What holds the memory": BREAKDOWN,
    "The answer": ANSWER,
    "How it was found": ORIGIN,
}


def write_glossary() -> str:
    """Write all of it as tables in Markdown."""
    lines: list[str] = []
    for title, terms in GLOSSARY.items():
        lines += [f"## {title}", "", "| word | field | meaning |", "|---|---|---|"]
        for term in terms:
            fields = ", ".join(f"`{field}`" for field in term.fields)
            anchor = f'<a id="{term.anchor}"></a>'
            lines.append(f"| {anchor}{term.name} | {fields} | {term.meaning} |")
        lines.append("")
    return "\n".join(lines)
