"""Errors of libraries that load models and states, without their advice to run code from the files."""

from __future__ import annotations

__all__ = ["load_problem"]


def load_problem(error: BaseException) -> str:
    """The reason why a file was not loaded, without a full stop where it is ours.

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
