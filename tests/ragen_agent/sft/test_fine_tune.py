"""Fine-tuning: from data to a model that training, evaluation and the benchmark read; interrupted and resumed."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import signal
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, Lora, with_settings
from ragen_agent.config.trainers import FineTuning
from ragen_agent.models.catalogue import NAMED_MODELS
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.models.named_models import SOURCE
from ragen_agent.run import policy
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder, families_met
from ragen_agent.sft.demonstrations import families_of, trajectory_of
from ragen_agent.sft.fine_tune import agent_config, begin, fine_tune, reopen
from ragen_gym.core.seen import SEEN_FILE, read_seen, write_seen
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.sft.test_demonstrations import lines_of

pytest.importorskip("peft", reason="LoRA needs the extra sft")

SMALL = {"game": "Bandit", "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sft") / "demos.jsonl"
    words = ["sft", "data", "--game", "Bandit", "--episodes", "96", "--out", str(path)]
    assert main([*words, "--set", "demonstrations.thought=choose"]) == 0
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent = Policy.build(with_settings(Config(), {**SMALL, "demonstrations": {"thought": "choose"}}))
    folder = tmp_path_factory.mktemp("sft") / "model"
    save_checkpoint(agent.model, agent.tokenizer, folder)
    return folder


def settings_of(data: Path, model: Path, **more: Any) -> FineTuning:
    base = FineTuning(data=str(data), model=str(model), batch=16, learning_rate=3e-3, save_every=2)
    return replace(base, **more)


def begun(settings: FineTuning, out: Path) -> FineTuning:
    """A fine-tuning that was stopped before its first step."""
    settings = begin(settings, out)
    out.mkdir()
    (out / "sft.json").write_text(json.dumps(asdict(settings)))
    return settings


def state(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = load_checkpoint(folder)[0].state_dict()
    return weights


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines_of(out / "metrics.jsonl")]


def test_from_data_to_reinforcement_and_measurement(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out, rates = tmp_path / "sft", tmp_path / "rates.json"
    words = ["--data", str(data), "--model", str(model), "--learning-rate", "1e-2", "--batch", "8", "--epochs", "10"]
    assert main(["sft", "train", *words, "--out", str(out), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["steps"], done["rows"], done["model"]) == (120, 96, str(out / "model"))
    first, last = losses(out)[0][1], losses(out)[-1][1]
    assert last < 0.5 * first
    assert (out / "model" / "chat_template.jinja").is_file()
    game = ["--game", "Bandit"]
    assert read_seen(out / "model" / "seen.npy") == families_of(lines_of(data))
    assert main(["eval", str(out / "model"), *game, "--levels", "24", "--json", str(rates)]) == 0
    split = json.loads(rates.read_text())["splits"]["Bandit"]
    assert (split["seen"], split["levels"]) == (20, 20)
    assert split["success"]["rate"] > 0.4, "it has learned how to answer"
    run = tmp_path / "run"
    tiny = ["--iterations", "1", "--set", "training.groups=2", "--set", "training.group_size=2"]
    tiny += ["--set", "evaluation.levels=8", "--out", str(run)]
    assert main(["train", *game, "--model", str(out / "model"), *tiny]) == 0
    assert "after" in json.loads((run / "summary.json").read_text())
    assert read_seen(run) >= read_seen(out / "model"), "a run inherits what its model has seen"


def test_data_of_other_splits_are_said_to_be(data: Path, model: Path, tmp_path: Path) -> None:
    lines = lines_of(data)
    for line in lines[:5]:
        line["split"] = None
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings, screen = settings_of(other, model, batch=96), io.StringIO()
    fine_tune(begin(settings, tmp_path / "sft"), tmp_path / "sft", Display(Console(file=screen, width=400)))
    assert screen.getvalue().count("5 of 96 conversations show levels outside the training split") == 1
    assert not (tmp_path / "sft" / "seen.npy").exists(), "with another split these seeds are other levels"
    run = RunFolder.create(tmp_path / "run", Config(model=str(tmp_path / "sft" / "model")))
    assert not run.seen.exists(), "what its model has seen is not known"


def test_the_data_say_how_conversations_become_tokens(data: Path, model: Path, tmp_path: Path) -> None:
    """As ``sft data`` notes it, and as the reinforcement that follows would do it; else by the defaults."""
    noted, told = lines_of(data), tmp_path / "told.jsonl"
    turns = noted[0]["turns"] | {"prompt": "ragen-v1", "think": False, "keep_thinking": False}
    bare = [{"messages": line["messages"]} for line in noted]
    for lines, begun, keep in (([{**noted[0], "turns": turns}], "<answer>", False), (bare, "", True)):
        config = agent_config(settings_of(told, model), lines)
        assert config.turns.keep_thinking == keep
        assert Policy.build(config).chat.begun == begun
    with pytest.raises(ValueError, match=r"told.jsonl, line 2, has the turns .*'keep_thinking': False.* in different"):
        agent_config(settings_of(told, model), [noted[0], {**noted[1], "turns": turns}])


def test_the_first_loss_is_the_mean_over_the_assistants_tokens_alone(data: Path, model: Path, tmp_path: Path) -> None:
    settings = settings_of(data, model, batch=96)
    fine_tune(begin(settings, tmp_path / "sft"), tmp_path / "sft", quiet())
    agent = Policy.build(replace(Config(), model=str(model)))
    total, count = 0.0, 0
    for line in lines_of(data):
        row = trajectory_of(agent.chat, line)
        with torch.no_grad():
            logits = agent.model(torch.from_numpy(row.ids)[None]).logits[0, :-1]
        labels = torch.where(torch.from_numpy(row.sampled), torch.from_numpy(row.ids), -100)[1:]
        missed = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        total, count = total + float(missed), count + int(row.sampled.sum())
    ((step, loss),) = losses(tmp_path / "sft")
    assert step == 1
    assert loss == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    ("rank", "dtype"), [(0, torch.float32), (2, torch.float32), (0, torch.bfloat16)], ids=["full", "lora", "bfloat16"]
)
def test_a_resumed_fine_tuning_equals_an_unbroken_one(
    rank: int, dtype: torch.dtype, data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "device_and_dtype", lambda config: ("cpu", dtype))
    settings = settings_of(data, model, lora=Lora(rank=rank))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = fine_tune(begin(settings, whole), whole, quiet())
    assert done["steps"] == 6

    class Stopped(Display):
        def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
            if len(losses(broken)) == 3:
                signal.raise_signal(signal.SIGINT)

    begun(settings, broken)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(reopen(broken), broken, Stopped(quiet().console))
    assert losses(broken) == losses(whole)[: len(losses(broken))]
    assert len(losses(broken)) in (3, 4), "the step is finished, or the next"
    (broken / "state.pt.writing0.tmp").write_bytes(b"torn")  # of a process that was killed while it wrote
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 9.9}\n{"step": 6, "lo')
    again = fine_tune(reopen(broken), broken, quiet())
    assert not list(broken.glob("*.tmp")), "as large as a state"
    assert losses(broken) == losses(whole)
    assert again["loss"] == done["loss"]
    name = "adapter/adapter_model.safetensors" if rank else "model/model.safetensors"
    assert (whole / name).read_bytes() == (broken / name).read_bytes()
    if dtype == torch.bfloat16:
        weights = state(whole / "model")
        assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in weights.values()), "not rounded"


def test_a_model_may_be_given_by_its_name(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "models" / "smollm2-135m"
    shutil.copytree(model, kept)
    (kept / SOURCE).write_text(json.dumps({"sha256": NAMED_MODELS["smollm2-135m"].sha256}))
    words = ["--data", str(data), "--model", "smollm2-135m", "--batch", "8"]
    assert main(["sft", "train", *words, "--out", "all"]) == 0
    assert state(tmp_path / "all" / "model").keys() == state(model).keys()
    assert main(["sft", "train", *words, "--lora-rank", "4", "--lora-target", "q_proj", "--out", "lora"]) == 0
    assert main(["sft", "merge", "lora", "--out", "merged"]) == 0


def test_an_adapter_is_merged_into_its_model(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel

    out = tmp_path / "my adapter"
    words = ["--data", str(data), "--model", str(model), "--lora-rank", "4", "--lora-target", "q_proj", "--batch", "8"]
    assert main(["sft", "train", *words, "--learning-rate", "0.05", "--out", str(out)]) == 0
    advice = capsys.readouterr().out.partition("ragen-agent sft merge ")[2]
    assert shlex.split(advice)[:3] == [str(out / "adapter"), "--out", str(out / "model")]
    assert main(["sft", "merge", str(out), "--out", str(tmp_path / "merged")]) == 0
    before, merged = state(model), state(tmp_path / "merged")
    changed = {name for name in before if not torch.equal(before[name], merged[name])}
    assert changed == {"model.layers.0.self_attn.q_proj.weight"}
    agent = Policy.build(replace(Config(), model=str(tmp_path / "merged")))
    ids = torch.tensor([trajectory_of(agent.chat, lines_of(data)[0]).ids.tolist()])
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(load_checkpoint(model)[0], str(out / "adapter"))(ids).logits
        torch.testing.assert_close(agent.model(ids).logits, adapted, atol=1e-4, rtol=0)
    assert "rounds away" not in capsys.readouterr().out
    coarse, tokenizer = load_checkpoint(model, dtype=torch.bfloat16)
    save_checkpoint(coarse, tokenizer, tmp_path / "coarse")
    adapter = shutil.copytree(out / "adapter", tmp_path / "small")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": settings["lora_alpha"] / 1e6}))
    again = ["sft", "merge", str(adapter), "--base", str(tmp_path / "coarse"), "--out", str(tmp_path / "rounded")]
    assert main(again) == 0
    assert "with the adapter in it\nbfloat16 rounds away 100% of what" in capsys.readouterr().out
    elsewhere, record = shutil.copytree(model, tmp_path / "elsewhere"), read_seen(out)
    write_seen(elsewhere / SEEN_FILE, [1])
    assert main(["sft", "merge", str(out), "--base", str(elsewhere), "--out", str(tmp_path / "both")]) == 0
    assert families_met(tmp_path / "merged") == record
    assert families_met(tmp_path / "both") == record | {1}, "what the base was trained on"
    shutil.copytree(out / "adapter", tmp_path / "alone" / "adapter")
    (tmp_path / "alone" / "adapter" / SEEN_FILE).unlink()
    assert main(["sft", "merge", str(tmp_path / "alone"), "--out", str(tmp_path / "unknown")]) == 0
    assert families_met(tmp_path / "unknown") is None, "what the adapter was trained on is not known"
    assert main(["sft", "merge", str(model), "--out", str(tmp_path / "x")]) == 2
    assert "holds no adapter" in capsys.readouterr().err
    assert main(["sft", "merge", str(out), "--out", str(tmp_path / "merged")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_does_not_fit_is_one_line(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used, bare = tmp_path / "used", tmp_path / "bare.jsonl"
    begun(settings_of(data, model), used)
    bare.write_text(json.dumps({"messages": lines_of(data)[0]["messages"]}) + "\n")
    tuned = ["--data", str(data), "--model", str(model)]
    lake, torn = tmp_path / "lake.jsonl", tmp_path / "torn.jsonl"
    torn.write_text(data.read_text().partition("\n")[0] + "\n" + '{"messages": [{"role": "user"}]}\n')
    assert main(["sft", "data", "--game", "FrozenLake", "--episodes", "4", "--out", str(lake)]) == 0
    lake.write_text(lake.read_text().replace("lake", "quagga"))
    for arguments, message in (
        (["--data", str(data)], "needs --data FILE and --out DIR"),
        (["--data", str(tmp_path / "no file"), *tuned[2:], "--out", str(tmp_path / "x")], "sft data --out '/"),
        (["--data", str(data), "--model", str(model), "--out", str(used)], "--resume"),
        (["--resume", str(used), "--seed", "1"], "leave out --seed"),
        (["--resume", str(tmp_path)], "holds no fine-tuning"),
        ([*tuned, "--batch", "5", "--accumulate", "2", "--out", str(tmp_path / "x")], "a multiple of"),
        ([*tuned, "--lora-target", "q_proj", "--out", str(tmp_path / "x")], "give --lora-rank"),
        (["--data", str(bare), "--out", str(tmp_path / "y")], "needs --model"),
        (["--data", str(lake), "--model", str(model), "--out", str(tmp_path / "z")], "tokenizer does not know a word"),
        (["--data", str(torn), "--model", str(model), "--out", str(tmp_path / "z")], "line 2: messages must be"),
        (["--data", str(data), "--model", str(tmp_path), "--out", str(tmp_path / "z")], "config.json"),
        ([*tuned, "--lora-rank", "2", "--lora-target", "k", "--out", str(tmp_path / "z")], "lora.targets"),
    ):
        capsys.readouterr()
        assert main(["sft", "train", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not {"x", "y", "z"} & {path.name for path in tmp_path.iterdir()}, "the same command can be given again"
    changed = tmp_path / "changed.jsonl"
    shutil.copy(data, changed)
    begun(settings_of(changed, model), tmp_path / "old")
    changed.write_text(bare.read_text())
    with pytest.raises(ValueError, match="is not the file that"):
        reopen(tmp_path / "old")
