"""torchtune's builders of models -> the public names of the same architectures."""

from __future__ import annotations

from collections.abc import Mapping

_QWEN = {
    "qwen2": ("Qwen/Qwen2", ("0.5b", "1.5b", "7b"), ("",)),
    "qwen2_5": (
        "Qwen/Qwen2.5",
        ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b"),
        ("_base", "_instruct", ""),
    ),
    "qwen3": (
        "Qwen/Qwen3",
        ("0.6b", "1.7b", "4b", "8b", "14b", "32b"),
        ("_base", "_instruct", ""),
    ),
}


def _qwen() -> dict[str, str]:
    """Return Qwen's: a variant is trained, and built, like any other of its size."""
    return {
        f"{family}_{size.replace('.', '_')}{variant}": f"{name}-{size.upper()}"
        for family, (name, sizes, variants) in _QWEN.items()
        for size in sizes
        for variant in variants
    }


#: without ``lora_`` or ``qlora_`` before it
NAMES: Mapping[str, str] = _qwen() | {
    "llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama2_13b": "meta-llama/Llama-2-13b-hf",
    "llama2_70b": "meta-llama/Llama-2-70b-hf",
    "code_llama2_7b": "codellama/CodeLlama-7b-hf",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "llama3_1_8b": "meta-llama/Llama-3.1-8B",
    "llama3_1_70b": "meta-llama/Llama-3.1-70B",
    "llama3_1_405b": "meta-llama/Llama-3.1-405B",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B",
    "llama3_2_3b": "meta-llama/Llama-3.2-3B",
    "llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral_7b": "mistralai/Mistral-7B-v0.1",
    "gemma_2b": "google/gemma-2b",
    "gemma_7b": "google/gemma-7b",
    "gemma2_2b": "google/gemma-2-2b",
    "gemma2_9b": "google/gemma-2-9b",
    "gemma2_27b": "google/gemma-2-27b",
    "phi3_mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi4_14b": "microsoft/phi-4",
}
