"""The programs of ``examples/``, each run with small arguments."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import speedrun
from ragen_agent import ChatFormat, TokenMDP
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.local.policy_update import Learner
from ragen_agent.local.policy_update import update as trainer_update
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.programs.dialects import chat
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.programs.request import Completion, Request, RequestError
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import sample
from ragen_agent.update.iteration import Iteration
from ragen_gym.envs.policies import plan_moves

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    """An example as a module; its main part does not run."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str, cwd: Path) -> str:
    """The output of an example, run in ``cwd``; its warnings are its own."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def test_the_first_update_from_scratch_has_the_gradients_of_the_trainer() -> None:
    example = load("starpo_from_scratch")
    settings = example.Settings(groups=6, group_size=4)
    policy = example.Policy(settings.seed)
    played = example.rollouts(policy, policy.processes("train", 24), 0, settings)
    # Random weights earn the same everywhere, so the rewards of the turns are drawn.
    rng = np.random.default_rng(0)
    played = [replace(t, turn_rewards=tuple(rng.integers(2, size=len(t.turn_rewards)).tolist())) for t in played]

    def optimiser() -> torch.optim.Optimizer:
        return torch.optim.SGD(policy.model.parameters(), lr=0.0)

    example.update(policy, optimiser(), played, 0, settings)
    found = gradients(policy.model)

    shared = ("groups", "group_size", "keep", "minibatch", "clip_low", "clip_high", "entropy_bonus")
    training = Training(**{name: getattr(settings, name) for name in (*shared, "max_grad_norm", "temperature")})
    iteration = Iteration.score_and_filter(0, played, ["FrozenLake"] * settings.groups, training, seed=0)
    learner = Learner(policy.model, optimiser(), policy.engine.bias)
    learner.observe(iteration)
    rows = [iteration.learned[row] for row in iteration.rows]
    assert len(rows) == 12
    advantages = iteration.groups.advantages.flatten()[iteration.rows]
    trainer_update(learner, rows, advantages, training, seed=0)
    expected = gradients(policy.model)

    assert float(expected.norm()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_defaults_from_scratch_are_those_of_the_trainer_on_this_game() -> None:
    from ragen_agent.config.presets import default_settings

    settings = load("starpo_from_scratch").Settings()
    usual = Training(**default_settings("FrozenLake")["training"])
    names = ("groups", "group_size", "keep", "minibatch", "learning_rate", "clip_low", "entropy_bonus", "temperature")
    for name in names:
        assert getattr(settings, name) == getattr(usual, name), name
    assert settings.clip_high == usual.upper_clip


def test_starpo_from_scratch_runs(tmp_path: Path) -> None:
    printed = run("starpo_from_scratch", "--demonstrations", "64", "--iterations", "1", "--levels", "8", cwd=tmp_path)
    assert "iteration   1" in printed
    assert {"random", "optimal", "imitation", "StarPO-S"} <= set(re.findall(r"^ +(\S+) ", printed, re.MULTILINE))


def test_the_speedrun_shows_the_prompts_that_it_will_be_given_and_shortest_ways(tmp_path: Path) -> None:
    example = load("speedrun")
    env = example.make_env("train")
    boards, moves = example.demonstrated(env, example.Settings(lakes=100))
    tokenizer = example.build_tokenizer(env)
    weights = example.weights(tokenizer.get_vocab_size(), 0)
    example.save(weights, tokenizer, tmp_path)
    model, read = load_checkpoint(tmp_path)
    chat = ChatFormat.from_tokenizer(read)
    ids, lengths = example.encoded(boards, moves)
    process, start = TokenMDP(env, chat), example.PROMPT
    assert len(boards) > 50
    for row in range(0, len(boards), 10):
        process.begin(seed=0, options={"level": env.game.level(boards[row].tobytes())})
        assert ids[row, :start].tolist() == process.ids
        assert len(plan_moves(env, 10)) == (moves[row] >= 0).sum()
        reply = ids[row, start : start + lengths[row]].tolist()
        process.append_reply(reply, [0.0] * len(reply))
        assert process.trajectory().success
    with torch.no_grad():
        theirs = model(ids, attention_mask=torch.ones_like(ids)).logits[:, start - 1 :, : example.WRITTEN]
        torch.testing.assert_close(example.logits(weights, ids), theirs, rtol=1e-4, atol=1e-5)


def test_the_steps_of_the_speedrun_are_those_of_adam_and_nearly_orthogonal() -> None:
    example = load("speedrun")
    torch.manual_seed(0)
    weight, state = torch.nn.Parameter(torch.zeros(8, 4)), dict[str, torch.Tensor]()
    theirs = torch.optim.Adam([weight], 1.0, betas=(0.9, 0.99))
    for number in (1, 2, 3):
        before, weight.grad = weight.detach().clone(), torch.randn(8, 4)
        theirs.step()
        torch.testing.assert_close(before - weight, example.adam(state, weight.grad, number))
    assert weight.grad is not None
    singular = torch.linalg.svdvals(example.muon({}, weight.grad))
    assert float(singular.min()) > 0.6
    assert float(singular.max()) < 1.3


def test_the_speedrun_plays_the_task_of_its_runner() -> None:
    ours, theirs = load("speedrun").make_env("train"), speedrun.make_env("train")
    assert (ours.game, ours.config) == (theirs.game, theirs.config)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    most = {"starpo_from_scratch": 300, "speedrun": 250}.get(path.stem, 120)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


def test_play_prints_both_grains(tmp_path: Path) -> None:
    printed = run("play", "--episodes", "5", cwd=tmp_path)
    assert printed.count("solved\n") == 2
    assert "[assistant]\n<think>The oracle knows the way.</think><answer>" in printed


def test_sb3_ppo_trains_and_films(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    printed = run("sb3_ppo", "--steps", "2048", "--episodes", "8", cwd=tmp_path)
    assert re.search(r"success on 8 test levels: [\d.]+% before, [\d.]+% after training", printed)
    assert (tmp_path / "sokoban.zip").stat().st_size > 0
    assert (tmp_path / "videos" / "rl-video-episode-0.mp4").stat().st_size > 0


def test_cleanrl_style_learns(tmp_path: Path) -> None:
    printed = run("cleanrl_style", "--updates", "20", "--episodes", "64", cwd=tmp_path)
    rates = [float(rate) for rate in re.findall(r"solved ([\d.]+)%", printed)]
    assert len(rates) == 3  # of the updates 1, 10 and 20
    assert rates[-1] > rates[0] + 20


def test_own_game_passes_its_checks(tmp_path: Path) -> None:
    printed = run("own_game", cwd=tmp_path)
    assert printed.endswith("...\n...\n...\nreward 1.0\n")


def test_own_task_passes_its_checks(tmp_path: Path) -> None:
    printed = run("own_task", cwd=tmp_path)
    assert "optimal replies 100% of 100 test problems" in printed


def test_own_rule_trains(tmp_path: Path) -> None:
    few = ["demonstrations.episodes=64", "training.iterations=1", "training.groups=2", "evaluation.levels=8"]
    arguments = [part for each in few for part in ("--set", each)]
    run("own_rule", "--game", "Bandit", "--out", "run", *arguments, cwd=tmp_path)
    assert 'algo = "median"' in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    rule = load("own_rule")
    returns = torch.tensor([[0.0, 0.15, 1.0]])
    np.testing.assert_allclose(rule.less_median(returns, None), [[-0.15, 0.0, 0.85]], atol=1e-6)


@pytest.fixture(scope="module")
def small() -> Policy:
    return Policy.build(with_settings(Config(), {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}}))


class SmallModel:
    """Serves chat completions of the small model; see ``ragen_agent.programs.endpoint.Player``."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.requests, self.lock = policy, 0, Lock()

    def complete(self, request: Request, gone: Callable[[], bool]) -> Completion:
        chat, self.requests = self.policy.chat, self.requests + 1
        ids = chat.conversation_ids(request.messages)
        with self.lock:  # the engine reads one batch at a time
            reply = sample(self.policy.engine, [ids], [request.most or 8], temperature=1.0, seed=self.requests)[0]
        stopped = reply.ids[-1] in chat.stop_ids
        return Completion(chat.decode_reply(reply.ids), len(ids), len(reply.ids), stopped)

    def begin(self) -> dict[str, Any]:
        raise RequestError(404, "not_found", "this server plays no games")

    reset = begin

    def turn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.begin()

    def end(self) -> None: ...


def test_benchmark_openai_asks_a_real_server(small: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_TAKEN", {*chat._TAKEN, "seed"})  # which training refuses, and a benchmark sends
    with Endpoint() as endpoint:
        player = SmallModel(small)
        arguments = ["small", "--base-url", f"{endpoint.add(player)}/v1", "--max-tokens", "8"]
        arguments += ["--split", "frozen_lake", "--limit", "2", "--out", str(tmp_path / "run")]
        printed = run("benchmark_openai", *arguments, cwd=tmp_path)
    assert player.requests >= 2
    assert "frozen_lake, 2 episodes" in printed
    assert re.search(r"  optimal +[\d.]+% \(", printed)
    assert re.search(r"  malformed *100.0% of the replies", printed)


def test_hf_generate_agent_plays(small: Policy, tmp_path: Path) -> None:
    save_checkpoint(small.model, small.tokenizer, tmp_path / "model")
    arguments = ["--limit", "2", "--max-tokens", "8", "--out", str(tmp_path / "run")]
    printed = run("hf_generate_agent", str(tmp_path / "model"), *arguments, cwd=tmp_path)
    assert re.search(r"success +[\d.]+% \(", printed)
    assert "malformed replies 100.0%" in printed


def test_the_table_lists_every_example() -> None:
    listed = re.findall(r"\[`(\S+)`\]\((\S+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert all(name == target for name, target in listed)
    files = [path for path in EXAMPLES.rglob("*.*") if path.suffix in (".py", ".ipynb", ".sh", ".yaml")]
    there = [str(path.relative_to(EXAMPLES)) for path in files]
    assert sorted(name for name, _ in listed) == sorted(there)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries of notebooks
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    kept = _printed(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = _printed(notebook)
    rates = next(place for place, text in enumerate(printed) if "optimal  100.0 %" in text)
    assert printed[rates] == kept[rates], "the outputs that are kept are those of this code"
    assert re.search(r"before +[\d.]+%\nafter +[\d.]+%\n", printed[-2])


def _printed(notebook: Any) -> list[str]:
    """What each cell wrote to stdout; stderr holds what libraries say of the machine."""
    outputs = ([o for o in cell.get("outputs", []) if o.get("name") == "stdout"] for cell in notebook.cells)
    return ["".join(output["text"] for output in of_cell) for of_cell in outputs]
