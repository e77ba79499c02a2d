"""The page's shell blocks, run as one script against servers that it starts itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "serve.md"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "openssl"))), reason="needs bash, curl and openssl")
def test_the_shell_blocks_run(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    for port in ("8000", "8001"):
        script = script.replace(port, str(free_port()))
    program = f'ragen-gym() {{ exec "{sys.executable}" -m ragen_gym.cli "$@"; }}'  # whatever PATH says
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"{program}\n{script}\nkill $(jobs -p)"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if key != "RAGEN_GYM_TOKEN"},
    )
    try:
        said, complained = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, complained
    answers = [json.loads(line) for line in re.sub(r"\}\{", "}\n{", said).splitlines()]
    created, moved, other_luck, following, state, turned, refused = answers
    assert created["start"]["info"]["level_id"] == moved["info"]["level_id"] == other_luck["info"]["level_id"]
    assert following["observation"] == state["board"] != other_luck["observation"]
    assert turned["info"]["actions"] == [0, 2]
    assert "Did you mean success_rate?" in refused["error"]["message"]
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "envs.json").read_text(encoding="utf-8"))[0]["name"] == "Bandit"
