"""Every recipe is a complete run that fits its GPUs or a CPU, and OpenRLHF, where installed, parses its flags."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, merged, presets, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.launch import planned_command, starting_model
from ragen_agent.openrlhf.supported import check_supported
from ragen_agent.preflight.estimates import FAST, SLOW, estimate, estimate_hours
from ragen_agent.preflight.plan import BatchPlan, devices_needed, most_pictures, rows_of_episode, rows_of_step
from ragen_agent.run.run_folder import RunFolder
from tests.ragen_agent.openrlhf.parsing import parsed_by_openrlhf

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "from_laptop_to_cluster.md"


def resolve(name: str) -> tuple[presets.Recipe, Config, OpenRLHF]:
    recipe = presets.read_recipe(name)
    settings = dict(recipe.settings)
    distributed = settings.pop("openrlhf", {})
    whole = merged(presets.default_settings(settings["game"], settings.get("model", "")), settings)
    return recipe, with_settings(Config(), whole), with_settings(OpenRLHF(), distributed)


ON_PICTURES = [name for name in presets.recipe_names() if resolve(name)[1].turns.sees]
ON_GPUS = [name for name in presets.recipe_names() if presets.read_recipe(name).gpus]
UNTAUGHT = ["qwen2.5-coder-0.5b-bandit", "qwen2.5-coder-0.5b-frozenlake"]  # no warm start, and a model of 2 GB
ON_CPUS = [name for name in presets.recipe_names() if name not in [*ON_GPUS, *ON_PICTURES, *UNTAUGHT]]
SEEING = [name for name in ON_GPUS if name in ON_PICTURES]


@pytest.mark.parametrize("name", [name for name in ON_GPUS if name.startswith("qwen2.5-0.5b-")])
def test_a_recipe_keeps_to_the_paper_and_fits_its_gpus(name: str) -> None:
    recipe, config, settings = resolve(name)
    training, turns = config.training, config.turns
    assert (training.groups, training.group_size, training.minibatch, training.iterations) == (8, 16, 32, 200)
    assert (training.keep, training.entropy_bonus, training.clip_low) == (0.25, 0.001, 0.2)
    assert training.algo == ("grpo" if name.endswith("-grpo") else "ppo")
    vanilla = name.endswith(("-starpo", "-grpo"))
    parts = (training.filter_rule, training.upper_clip, training.kl_estimate, training.kl_place)
    assert parts == (("none", 0.2, "k1", "reward") if vanilla else ("top", 0.28, "none", "reward"))
    assert not vanilla or training.kl == 0.001
    assert turns.prompt == "ragen-v1"
    assert (training.temperature, config.evaluation.temperature) == (1.0, 0.5)
    assert (config.evaluation.levels, config.evaluation.split) == (256, "test")
    assert (turns.max_turns, turns.max_actions) == ((1, 1) if config.game == "Bandit" else (5, 10))
    found = estimate(config, settings, recipe.gpu_gib)
    assert found is not None
    assert found.peak[0] == pytest.approx(recipe.memory_gib, abs=0.06)
    assert recipe.memory_gib < 0.9 * recipe.gpu_gib
    vllm = settings.vllm_engines * settings.vllm_tensor_parallel
    actor, critic = settings.actor_nodes * settings.actor_gpus, settings.critic_nodes * settings.critic_gpus
    assert recipe.gpus == (actor if settings.colocate else actor + critic + vllm)
    assert recipe.seen
    assert recipe.expect


@pytest.mark.parametrize("name", [name for name in ON_GPUS if name.startswith(("qwen3-4b-", "qwen2.5-7b-"))])
def test_a_plan_for_many_gpus_answers_before_anything_is_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Devices, memory, tokens, a range of hours from named rates, and what stands idle; the models are not here."""
    recipe, config, settings = resolve(name)
    assert (recipe.seen, recipe.gpus, settings.attention) == ("not run here", 64 if "64gpu" in name else 8, "sdpa")
    assert (config.training.algo, config.training.filter_rule, devices_needed(config, settings)) == (
        ("grpo", "top", recipe.gpus)
    )
    assert BatchPlan.of(config, distributed=True).rows == config.training.minibatch, "no row of a step is padding"
    assert config.turns.keep_thinking is not name.startswith("qwen3")
    assert main(["train", "--recipe", name, "--backend", "openrlhf", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    prompts = " in each of its 5 prompts" * name.startswith("qwen3")
    for part in (
        f"GPUs: {recipe.gpus}, shared by all",
        f"{recipe.gpus * 16} episodes, of at most 4096 tokens each{prompts}: at most",
        f"needs about {recipe.memory_gib:.1f} of 80 GiB",
        "it fits",
        "Hours, estimated and not measured: ",
        "15% to 40% of 989 TFLOP/s in training",
        "Idle: GPUs whose 16 episodes end first",
        f"Recipe {name}: not run here",
    ):
        assert part in said, part


def test_the_page_has_the_estimates_of_larger_models() -> None:
    rows = re.findall(
        r"^\| `(\S+)` \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == 4
    for name, tokens, gib, *shown in rows:
        recipe, config, settings = resolve(name)
        episodes = BatchPlan.of(config, distributed=True).episodes * rows_of_episode(config)
        assert int(tokens.replace(",", "")) == episodes * config.turns.max_tokens_per_episode
        assert float(gib) == recipe.memory_gib
        for pace, hours in zip((FAST, SLOW), shown, strict=True):
            found = estimate_hours(config, settings, recipe.gpu_gib, pace)
            assert found is not None
            assert found.run == pytest.approx(float(hours), abs=0.51 if float(hours) >= 10 else 0.051)


@pytest.mark.parametrize("name", ON_CPUS)
def test_a_recipe_for_a_cpu_runs_on_both_trainers_from_its_own_warm_start(name: str, tmp_path: Path) -> None:
    recipe, config, settings = resolve(name)
    assert (recipe.gpus, recipe.gpu_gib, settings.accelerator) == (0, 0.0, "auto")
    assert config.warm_start.epochs, "the model never met the format"
    check_supported(config, settings)
    assert starting_model(config, tmp_path / "run") == (tmp_path / "run").resolve() / "warm"
    rows = BatchPlan.of(config, distributed=True).rows
    assert -rows % rows_of_step(config, settings) == 0, "no row of a full iteration is padding"


@pytest.mark.parametrize("name", SEEING)
def test_a_recipe_with_pictures_fits_its_gpus(name: str, tmp_path: Path) -> None:
    recipe, config, settings = resolve(name)
    assert config.training.algo == "grpo", "OpenRLHF has no critic for visual models"
    assert config.training.filter_rule == "top"
    assert (settings.freeze_vision, recipe.seen) == (True, "not run here")
    found = estimate(config, settings, recipe.gpu_gib)
    assert found is not None
    assert found.peak[0] == pytest.approx(recipe.memory_gib, abs=0.06)
    assert recipe.memory_gib < 0.9 * recipe.gpu_gib
    whole = estimate(config, replace(settings, freeze_vision=False), recipe.gpu_gib)
    assert whole is not None
    assert sum(p.gib for p in whole.parts) > sum(p.gib for p in found.parts), "its own encoder is trained too"
    words, _ = planned_command(config, settings, tmp_path / "run")
    assert words[words.index("--data.max_images_per_prompt") + 1] == str(config.turns.max_turns)
    assert "--actor.freeze_visual_encoder" in words
    assert "--ds.packing_samples" not in words


@pytest.mark.parametrize("name", SEEING)
def test_a_dry_run_of_a_visual_model_that_is_not_here(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pictures are cut as the small model's are."""
    assert main(["train", "--recipe", name, "--backend", "openrlhf", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\[picture of (\d+)x\1 pixels: \d+ times <\|image_pad\|>\]", said)
    assert f"Recipe {name}: not run here" in said
    assert "it fits" in said


def test_a_prompt_has_the_pictures_of_the_turns_that_it_keeps() -> None:
    turns = {"observation": "both", "max_turns": 6}
    assert most_pictures(Config()) == 0
    assert most_pictures(with_settings(Config(), {"turns": turns})) == 6
    assert most_pictures(with_settings(Config(), {"turns": {**turns, "history": 2}})) == 3
    assert most_pictures(with_settings(Config(), {"turns": {**turns, "history": 9}})) == 6


def test_a_dry_run_of_a_recipe_for_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--recipe", ON_CPUS[0], "--backend", "openrlhf", "--set", "openrlhf.accelerator=cpu"]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "each of these GPUs stands for a share of the CPU" in said
    assert "Memory" not in said
    assert "/warm \\\n" in said, "the model that the warm start leaves"


@pytest.mark.parametrize("name", [name for name in ON_PICTURES if name not in SEEING])
def test_a_dry_run_of_a_recipe_with_pictures_shows_where_they_stand(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = presets.read_recipe(name)
    assert (recipe.gpus, "openrlhf" in recipe.settings) == (0, False)
    assert main(["train", "--recipe", name, "--backend", "local", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"Recipe {name}: {recipe.seen}" in said
    assert "[picture of 112x112 pixels: 16 times <|image_pad|>]" in said


@pytest.mark.skipif(find_spec("openrlhf") is None, reason="OpenRLHF is not installed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [*ON_GPUS, *ON_CPUS])
def test_openrlhf_reads_the_flags_of_a_recipe(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, config, settings = resolve(name)
    settings = replace(settings, flags="--ds.overlap_comm")
    parsed = parsed_by_openrlhf(planned_command(config, settings, tmp_path / "run")[0], monkeypatch)
    training = config.training
    assert parsed["rollout.batch_size"] == training.groups
    assert parsed["rollout.n_samples_per_prompt"] == training.group_size
    assert parsed["train.batch_size"] == rows_of_step(config, settings)
    assert parsed["ds.overlap_comm"] is True
    assert parsed["ds.lora.rank"] == config.lora.rank


SAID = ("optimal", "train_ppo_ray", "not run here", "25,600 episodes", "is ready")


def test_the_files_of_the_page_are_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "mine.toml").write_text(block)
        assert main(["train", "--config", str(tmp_path / "mine.toml"), "--backend", "openrlhf", "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert "iterations = 400" in said
        assert "of 24 GiB" in said


@pytest.mark.slow
@pytest.mark.nightly
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for line in re.findall(r"^laptop\$ ragen-agent (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        code = main(shlex.split(line))
        said.append(capsys.readouterr())
        assert code == 0, (line, said[-1])
    assert [part in text.out for part, text in zip(SAID, said, strict=True)] == [True] * len(SAID)
    assert RunFolder(tmp_path / "runs" / "laptop").checkpoint.is_dir()


def test_the_page_has_a_row_for_each_recipe() -> None:
    rows = dict(re.findall(r"^\| `(qwen[^`]+)` \| [^|]+ \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {name: float(gib) for name, gib in rows.items()} == {n: presets.read_recipe(n).memory_gib for n in ON_GPUS}


def test_a_recipe_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "--recipe", "qwen2.5-0.5b-sokobann", "--dry-run"]) == 2
    assert "Did you mean qwen2.5-0.5b-sokoban?" in capsys.readouterr().err
    (tmp_path / "own.toml").write_text('[recipe]\nbase = "nothing"\n')
    with pytest.raises(ValueError, match="its base does not fit, there is no recipe 'nothing'"):
        presets.read_settings_file(tmp_path / "own.toml")


def test_the_list_of_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list-recipes"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in presets.recipe_names())
    assert "not run here" in said
    assert "about 0 GiB" not in said
