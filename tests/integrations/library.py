"""What the tests of the adapters share: when they run, a model's stand-in, and installing what was exported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest

from ragen_gym.integrations import Rollout

__all__ = [
    "CHATML",
    "REPLIES",
    "byte_tokenizer",
    "export",
    "install",
    "needs",
    "options",
    "played",
    "save_byte_model",
    "serving",
    "serving_replies",
]

#: Replies that a stand-in for a model gives, one malformed, in the order of the turns.
REPLIES = ("<think>Up.</think><answer>Left || Up</answer>", "Up, I think.", "<think>On.</think><answer>Right</answer>")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def needs(target: str, *modules: str) -> None:
    """Skip the file, except in the environment that was made for it, where a missing library is an error."""
    if os.environ.get("RAGEN_GYM_INTEGRATION") != target:
        reason = f"`make test-integrations ARGS={target}` runs this where {modules[0]} is installed"
        pytest.skip(reason, allow_module_level=True)
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ImportError(f"the environment of {target} lacks {', '.join(missing)}.")


def conforms(name: str) -> None:
    """Checks that the installed library computes what ``benchmarks/conform.md`` says of it."""
    from ragen_agent.conform.compare import findings
    from ragen_agent.conform.libraries import load

    page = Path(__file__).parents[2] / "benchmarks" / "conform.json"
    library = load(name)
    said = {row["rule"]: row["differences"] for row in json.loads(page.read_text())["libraries"][library.name]}
    assert {found.rule: found.differences for found in findings(library)} == said


def options(chosen: dict[str, Any]) -> list[str]:
    """Options as arguments of ``ragen-gym export-env``."""
    return [word for name, value in chosen.items() for word in ("--option", f"{name}={value}")]


def byte_tokenizer(template: str = CHATML) -> Any:
    """One token for each byte, and the special tokens of ChatML."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    words = ["<|pad|>", "<|im_end|>", "<|im_start|>", *sorted(ByteLevel.alphabet())]
    special = {"unk_token": words[0], "pad_token": words[0], "eos_token": words[1]}
    tokenizer: Any = Qwen2Tokenizer(
        {word: i for i, word in enumerate(words)}, [], **special, additional_special_tokens=[words[2]]
    )
    tokenizer.chat_template = template
    return tokenizer


def save_byte_model(folder: Path, tokenizer: Any) -> Path:
    """A folder as of a model, with the tokenizer and a configuration but no weights."""
    from transformers import Qwen2Config

    Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def export(folder: Path, target: str, *arguments: str) -> Path:
    """What ``ragen-gym export-env`` writes."""
    command = [sys.executable, "-m", "ragen_gym.cli", "export-env", target, str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def install(package: Path, site: Path) -> dict[str, str]:
    """Install an exported package without its requirements into a folder of its own; the variables that find it."""
    flags = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(site), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(part for part in (str(site), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


def played(seed: int, noise_seed: int, **arguments: Any) -> Rollout:
    """An episode of FrozenLake with ``REPLIES``, as it goes without any library."""
    rollout = Rollout("FrozenLake", **arguments)
    rollout.begin(seed, noise_seed)
    for reply in REPLIES:
        if not rollout.over:
            rollout.reply(reply)
    return rollout


@contextmanager
def serving(folder: Path, app: str = "server.app:app") -> Iterator[str]:
    """The URL of an app that uvicorn serves from a folder, as the container of an exported package does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            try:
                urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


class _Model(BaseHTTPRequestHandler):
    """Chat completions, streamed or not, whose text depends on how many replies there were."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        message = {"role": "assistant", "content": REPLIES[turn % len(REPLIES)]}
        head = {"id": "0", "created": 0, "model": request.get("model", "stand-in")}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if request.get("stream"):
            chunk = {**head, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            body, kind = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {**head, "object": "chat.completion", "choices": [{**choice, "message": message}], "usage": usage}
            body, kind = json.dumps(answer), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving_replies(handler: type[BaseHTTPRequestHandler] = _Model) -> Iterator[str]:
    """The base URL of an OpenAI-compatible server that gives ``REPLIES``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
