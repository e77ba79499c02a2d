"""Uploads of a finished run to the Hugging Face Hub: its checkpoint as a model, its records as a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, get_token

from ragen_agent.config import Config, to_toml
from ragen_agent.config.settings import shareable
from ragen_agent.run.run_folder import RunFolder

#: The files of a data set, beside its settings.
RECORDS = ["versions.json", "metrics.jsonl", "episodes.jsonl", "summary.json", "curve.png"]


def push(config: Config, summary: dict[str, Any], folder: RunFolder, say: Callable[[str], None]) -> None:
    """Uploads what ``config.hub`` names and what is not there yet; creates missing repositories.

    A failed upload is said and leaves the run as it is. ``summary["hub"]`` holds the address of each commit, so that a
    resumed run uploads the others alone.
    """
    api = HfApi()
    for kind in ("model", "dataset"):
        name = getattr(config.hub, kind)
        if not name or kind in summary.get("hub", {}):
            continue
        try:
            api.create_repo(name, repo_type=kind, private=config.hub.private, exist_ok=True)
            message = f"{folder.path.resolve().name}, by ragen-agent train"
            adds = [CommitOperationAdd(there, here) for there, here in _files(kind, config, folder).items()]
            done = api.create_commit(name, adds, repo_type=kind, commit_message=message)
        except Exception as error:  # of the network, the Hub, its library or the files: none may end a finished run
            reason = str(error).strip().partition("\n")[0].replace(get_token() or "***", "***")
            say(
                f"hub.{kind}: {name} was not uploaded: {type(error).__name__}: {reason} The run is complete; --resume "
                "tries again."
            )
        else:
            summary.setdefault("hub", {})[kind] = done.commit_url
            folder.write_summary(summary)
            say(f"Uploaded to the Hub: {done.commit_url}")


def _files(kind: str, config: Config, folder: RunFolder) -> dict[str, Path | bytes]:
    """The files of a repository, by their path there."""
    if kind == "model":
        weights = folder.checkpoint.rglob("*")
        return {path.relative_to(folder.checkpoint).as_posix(): path for path in weights if path.is_file()}
    records = (folder.path / name for name in RECORDS)
    return {path.name: path for path in records if path.is_file()} | {
        "config.toml": to_toml(shareable(config)).encode()
    }
