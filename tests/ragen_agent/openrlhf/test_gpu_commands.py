"""Every command of the pages on GPUs and clusters is read, as far as a machine without them can read it."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from ragen_agent.cli import build_parser, main
from ragen_agent.config.presets import read_recipe, recipe_names
from ragen_agent.openrlhf.cli_flags import MODULE
from ragen_agent.preflight.doctor import INSTALL, TESTED
from tests.pages import ROOT
from tests.ragen_agent.openrlhf.parsing import parsed_by_openrlhf

GUIDES = ROOT / "docs" / "guides"
NINE_STEPS = GUIDES / "first_run_on_a_gpu.md"
CLUSTER = GUIDES / "from_laptop_to_cluster.md"
MODELS = {Path(str(read_recipe(name).settings.get("model"))) for name in recipe_names()}


def commands(page: Path) -> list[list[str]]:
    """The words of each command behind a prompt, without assignments of variables before it."""
    lines = re.findall(r"^(?!laptop)\w+\$ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", line), comments=True) for line in lines]


def train_options(words: list[str]) -> list[str] | None:
    """The options of ``ragen-agent train`` that a command starts a run with; None if it starts none."""
    if words[0] == "timeout":
        words = words[3:]
    if words[:2] == ["ragen-agent", "train"] and "--resume" not in words:
        return words[2:]
    if words[0].endswith("share_node.sh"):
        return ["--backend", "openrlhf", *words[3:], "--out", words[2]]
    if words[0] == "sbatch":
        return ["--backend", "openrlhf", "--recipe", words[-2], "--out", words[-1]]
    return None


RUNS = {
    f"{page.stem}-{options[options.index('--out') + 1]}": options
    for page in (NINE_STEPS, CLUSTER)
    for options in map(train_options, commands(page))
    if options is not None
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS.keys())
def test_a_run_of_the_pages_is_planned_for_a_gpu_and_read_by_openrlhf(
    options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # neither models nor earlier runs are here
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert main(["train", *options, "--dry-run"]) == 0
    said = capsys.readouterr().out
    if "openrlhf" not in options:
        return
    assert "it fits" in said or "--model" in options, "the sizes of a model of an earlier run are not known"
    printed = re.search(rf"^python -P -m {MODULE}.*?\n\n", said, re.MULTILINE | re.DOTALL)
    assert printed is not None
    command = shlex.split(printed[0].replace("\\\n", ""))
    assert command[command.index("--vllm.sync_backend") + 1] == "nccl"
    if find_spec("openrlhf"):
        parsed_by_openrlhf(command, monkeypatch)


@pytest.mark.parametrize("page", [NINE_STEPS, CLUSTER], ids=lambda page: page.stem)
def test_the_other_commands_name_what_is_there(page: Path) -> None:
    folders = {options[options.index("--out") + 1] for options in RUNS.values()}
    for words in commands(page):
        match words:
            case _ if train_options(words) is not None:
                continue
            case ["ragen-agent", *rest]:
                options = vars(build_parser().parse_args(rest))
                assert options.get("resume") is None or str(options["resume"]) in folders
            case ["ragen-gym", "bench", "run", *_]:
                continue  # of the guide on benchmarks, which a test runs
            case ["pip", "install", *_]:
                pins = [word.split("==") for word in words if "==" in word]
                assert all(version == TESTED[name][0] for name, version in pins)
                assert not pins or all("==".join(pin) in INSTALL for pin in pins)
            case ["python", "-m", "pytest", *_, path]:
                assert (ROOT / path).is_file()
            case ["hf", "download", _, "--local-dir", folder]:
                assert Path(folder) in MODELS
            case ["kubectl", "apply", "-f", path]:
                assert (ROOT / path).is_file()
            case ["ray", "start" | "status", *_]:
                continue
            case _:
                pytest.fail(f"no test reads {words}")


def test_the_page_has_nine_steps() -> None:
    steps = re.findall(r"^\| (\d) \|", NINE_STEPS.read_text(encoding="utf-8"), re.MULTILINE)
    block = NINE_STEPS.read_text(encoding="utf-8").split("The nine steps, in the clone:")[1].split("```")[1]
    resumed = block.count("--resume")
    assert list(map(int, steps)) == [*range(1, 10)] == [*range(1, block.count("gpu$ ") - resumed + 1)]
