"""Errors of loading models and states, without the libraries' advice to run code from the files."""

from __future__ import annotations

from typing import Any

__all__ = ["check_no_kernels", "load_problem"]


def check_no_kernels(config: Any) -> None:
    """Raises a ValueError if a model's configuration names Hub code, which transformers would fetch and run."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in ("attn_implementation", "experts_implementation"):
            if "/" in str(value := getattr(part, f"_{name}", None)):
                raise ValueError(
                    f"its config.json names code of the Hub ({name}: {value}), which is never run: remove it"
                )


def load_problem(error: BaseException) -> str:
    """The reason why a file was not loaded, without a full stop if the text is ours.

    torch and transformers advise ``weights_only=False`` and ``trust_remote_code=True``, with which the file's own code
    would run.
    """
    text = str(error)
    if "trust_remote_code" in text:
        return (
            "it names code of its own (auto_map), which is never run: use a model of a type that the installed "
            "transformers knows, and remove auto_map from its files"
        )
    if "weights_only" in text or "WeightsUnpickler" in text:
        return "it is damaged, or holds other objects than tensors, which are never unpickled"
    return text
