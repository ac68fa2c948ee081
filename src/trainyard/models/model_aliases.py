"""Other names of the models in the package: those of hubs and papers, and of versions with the same dimensions."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    # Llama 3.1 has the dimensions of Llama 3; 3.3 those of 3.1 70B.
    "llama3.1-8b": "llama3-8b",
    "llama3.1-70b": "llama3-70b",
    "llama3.3-70b": "llama3-70b",
    "llama3.1-405b": "llama3-405b",
    "gpt2-xl-1.5b": "gpt2-xl",
    "gpt3": "gpt3-175b",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "gemma-2-9b": "gemma2-9b",
    "gemma-3-27b": "gemma3-27b",
    "nemotron-h-8b-8k": "nemotron-h-8b",
    "nemotron-h-56b-8k": "nemotron-h-56b",
}
"""Other name -> name of the model's file."""
IGNORED_WORDS = frozenset({"meta", "base", "instruct", "chat", "hf", "it", "pt", "v0.1", "v0.2", "v0.3", "2507"})
"""Words of a name that do not change the dimensions: a vendor, a tuned version, a format."""
OWNERS = frozenset(
    {
        "meta-llama", "mistralai", "qwen", "openai", "openai-community", "google", "deepseek-ai", "nvidia", "ai21labs",
        "unsloth", "nousresearch",
    }
)  # fmt: skip
"""Organisations of the Hugging Face hub that publish models of these dimensions."""
