"""Uploads of a finished run to the Hugging Face Hub: its checkpoint as a model, its records as a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from huggingface_hub import HfApi, get_token

from ragen_agent.config import Config
from ragen_agent.run.run_folder import RunFolder

#: The files of a data set.
RECORDS = ["config.toml", "versions.json", "metrics.jsonl", "episodes.jsonl", "summary.json", "curve.png"]


def push(config: Config, summary: dict[str, Any], folder: RunFolder, say: Callable[[str], None]) -> None:
    """Uploads what ``config.hub`` names and what is not there yet; creates missing repositories.

    A failed upload is said and leaves the run as it is. ``summary["hub"]`` holds the address of each commit, so that a
    resumed run uploads the others alone.
    """
    api = HfApi()
    for kind, name, path, files in (
        ("model", config.hub.model, folder.checkpoint, None),
        ("dataset", config.hub.dataset, folder.path, RECORDS),
    ):
        if not name or kind in summary.get("hub", {}):
            continue
        try:
            api.create_repo(name, repo_type=kind, private=config.hub.private, exist_ok=True)
            message = f"{folder.path.resolve().name}, by ragen-agent train"
            done = api.upload_folder(
                repo_id=name, repo_type=kind, folder_path=path, allow_patterns=files, commit_message=message
            )
        except Exception as error:  # of the network, the Hub or its library: none may end a finished run
            reason = str(error).strip().partition("\n")[0].replace(get_token() or "***", "***")
            say(
                f"hub.{kind}: {name} was not uploaded: {type(error).__name__}: {reason} The run is complete; --resume "
                "tries again."
            )
        else:
            summary.setdefault("hub", {})[kind] = done.commit_url
            folder.write_summary(summary)
            say(f"Uploaded to the Hub: {done.commit_url}")
