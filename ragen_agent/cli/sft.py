"""``ragen-agent sft``: write demonstrations, fine-tune a model on them, merge an adapter into its model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.core.command_line import add_command, print_json, shell_word, stops_at_sigterm

if TYPE_CHECKING:
    from ragen_agent.config import Config

ABOUT = """\
Supervised fine-tuning before reinforcement learning: sft data writes demonstrations of the oracle as conversations, sft
train trains a model on what the assistant says in them (all weights, or LoRA), sft merge makes a LoRA adapter part of
its model. The result is read by ragen-agent train --model, ragen-agent eval and ragen-gym bench run --agent hf:FOLDER.

examples:
  ragen-agent sft data --game Sokoban --episodes 2000 --out demos.jsonl
  ragen-agent sft train --data demos.jsonl --model models/Qwen2.5-0.5B-Instruct --lora-rank 16 --out sft
  ragen-agent sft merge sft/adapter --out sft/model
  ragen-agent train --game Sokoban --model sft/model"""

DATA = """\
Writes demonstrations on levels of the training split, one conversation a line: messages, game, env options, budgets,
level, seeds and success. The demonstrator knows the best moves, replies with as many as a reply may hold and says in
its thought what each of them does; the settings [demonstrations] make it worse, or change what it thinks. The same
settings give the same file.

With --config RUN/config.toml they are the demonstrations that the run's own warm start was shown. For a pretrained
model give --model: its messages state the limit of tokens, as they will in ragen-agent train --model.

examples:
  ragen-agent sft data --game FrozenLake --set env_options.size=4 --episodes 4000 --out demos.jsonl
  ragen-agent sft data --game Sokoban --set demonstrations.quality=0.8 --seed 1 --out worse.jsonl
  ragen-agent sft data --game Bandit --set demonstrations.thought=choose --out undecided.jsonl"""

TRAIN = """\
Trains a model on the conversations of a file; the loss is on exactly the tokens that the assistant wrote, the end
token of each reply included, and the tokens are those that a rollout would have made. The learning rate rises over the
first 5 % of the steps and falls to 0. LoRA needs the extra sft: pip install 'ragen-gym[sft]'. Ctrl-C finishes the step
and writes a checkpoint; --resume goes on from the last one.

examples:
  ragen-agent sft train --data demos.jsonl --model MODEL --out sft
  ragen-agent sft train --data demos.jsonl --model MODEL --lora-rank 16 --lora-target q_proj --out sft
  ragen-agent sft train --resume sft"""

MERGE = """\
Makes a LoRA adapter part of the weights of its model and writes the result as a model of its own, in the dtype of that
model, tokenizer and chat template included. Takes the adapter/ of ragen-agent sft train, of a run of ragen-agent train,
or any of peft's.

examples:
  ragen-agent sft merge sft --out sft/model
  ragen-agent sft merge runs/x/adapter --base MODEL --out merged"""


METAVARS = {"data": "FILE", "model": "MODEL"}


def add(commands: Any) -> None:
    """Adds the commands to the parser."""
    parser = commands.add_parser("sft", help="demonstrations, and fine-tuning on them", description=ABOUT)
    kinds = parser.add_subparsers(metavar="COMMAND")
    _add_data(add_command(kinds, "data", "write demonstrations", _data, description=DATA))
    _add_train(add_command(kinds, "train", "fine-tune on them", _train, description=TRAIN))
    merge = add_command(kinds, "merge", "merge an adapter", _merge, description=MERGE)
    merge.add_argument("adapter", type=Path, metavar="ADAPTER", help="its folder, or one that holds an adapter/")
    merge.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the model")
    merge.add_argument("--base", type=Path, metavar="DIR", help="the model (default: the one that the adapter names)")
    for each in kinds.choices.values():
        each.add_argument("--json", action="store_true", help="print what was written as JSON")


def _add_data(parser: argparse.ArgumentParser) -> None:
    from ragen_agent.cli.settings import add_settings

    parser.add_argument("--model", metavar="DIR", help="the model to be trained on them (default: the small model)")
    parser.add_argument("--episodes", type=int, metavar="N", help="how many (default: the game's settings)")
    parser.add_argument("--seed", type=int, metavar="N", help="of levels and random moves (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file of JSON lines")
    add_settings(parser)


def _add_train(parser: argparse.ArgumentParser) -> None:
    from ragen_agent.cli.settings import add_run_code, help_text
    from ragen_agent.config import Lora
    from ragen_agent.config.trainers import FineTuning
    from ragen_gym.core.settings import declared

    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on in this folder; takes no other setting")
    for name, each in declared(FineTuning).items():
        flag = f"--{name.replace('_', '-')}"
        if each.type is bool:
            parser.add_argument(flag, action="store_true", default=None, help=each.doc)
        else:
            metavar = {int: "N", float: "R", str: METAVARS.get(name, "NAME")}[each.type]
            parser.add_argument(flag, type=each.type, metavar=metavar, help=help_text(each))
    parser.add_argument(
        "--lora-rank", type=int, metavar="N", help="train an adapter of this rank (default: all weights)"
    )
    alpha = declared(Lora)["alpha"].default
    parser.add_argument(
        "--lora-alpha", type=float, metavar="A", help=f"the adapter is scaled by this over the rank (default {alpha:g})"
    )
    parser.add_argument(
        "--lora-target", action="append", metavar="LAYER", help="a layer to adapt, repeatable (default: every linear)"
    )
    add_run_code(parser)


def _data(options: argparse.Namespace) -> int:
    from ragen_agent.cli.settings import check_not_distributed
    from ragen_gym.core.storage import check_parent

    check_not_distributed(options)
    check_parent(options.out)
    with _display().waiting("loading torch and transformers"):
        from ragen_agent.sft.demonstrations import write_conversations
    config = _demonstrators(options)
    written = write_conversations(config, options.out, _display())
    text = "{out}: {episodes} conversations, {successes} of them won".format(out=options.out, **written)
    _print(options, {"out": str(options.out), **written}, text)
    return 0


def _demonstrators(options: argparse.Namespace) -> Config:
    """The settings, by default with a demonstrator that makes no mistakes and writes its plan."""
    from ragen_agent.cli.settings import configure, given, settings_of
    from ragen_agent.config.presets import read_settings_file
    from ragen_agent.sft.demonstrations import faultless

    flags = {**given(options, "model", "seed"), "demonstrations": given(options, "episodes")}
    config = configure(options, flags)
    file = read_settings_file(options.config).get("demonstrations", {}) if options.config is not None else {}
    chosen = {*file, *settings_of(options).get("demonstrations", {})}
    plain = replace(faultless(config), thought="plan")
    default = {name: getattr(plain, name) for name in ("moves", "mistakes", "quality", "thought") if name not in chosen}
    return replace(config, demonstrations=replace(config.demonstrations, **default))


def _train(options: argparse.Namespace) -> int:
    from ragen_agent.cli.settings import given
    from ragen_agent.config import with_settings
    from ragen_agent.config.trainers import FineTuning
    from ragen_agent.models.named_models import model_folder
    from ragen_agent.sft.demonstrations import read_conversations
    from ragen_agent.sft.fine_tune import begin, fine_tune, is_begun, reopen
    from ragen_gym.core.settings import declared
    from ragen_gym.games.registry import full_name

    asked = given(options, *declared(FineTuning))
    lora = {"rank": options.lora_rank, "alpha": options.lora_alpha, "targets": options.lora_target}
    lora = {name: value for name, value in lora.items() if value is not None}
    if options.resume is not None:
        if asked or lora or options.out is not None:
            others = [*asked, *(f"lora_{name}" for name in lora), *(["out"] if options.out is not None else [])]
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            raise ValueError(f"--resume goes on with its own settings: leave out {flags}.")
        out, settings = options.resume, reopen(options.resume)
    else:
        if options.data is None or options.out is None:
            raise ValueError("sft train needs --data FILE and --out DIR, or --resume DIR.")
        if lora and not lora.get("rank"):
            raise ValueError("--lora-alpha and --lora-target are an adapter's: give --lora-rank too, such as 16.")
        if asked.get("model"):
            asked["model"] = str(model_folder(asked["model"]))
        out, settings = options.out, begin(with_settings(FineTuning(), {**asked, "lora": lora}), options.out)
    data = Path(settings.data)
    if options.run_code:  # the levels that the data show are only known of a game that is imported
        for game in sorted({line["env"] for line in read_conversations(data) if isinstance(line.get("env"), str)}):
            full_name(game)
    try:
        with stops_at_sigterm():
            done = fine_tune(settings, out, _display())
    except KeyboardInterrupt:
        code = " --run-code" * options.run_code
        go_on = f"Go on with: ragen-agent sft train --resume {shell_word(out)}{code}"
        rest = go_on if is_begun(out) else "Nothing was written yet."
        print(f"\nragen-agent: stopped. {rest}", file=sys.stderr)
        return 130
    text = f"{done['steps']} step{'s' * (done['steps'] != 1)} on {done['rows']} conversations"
    text += f"; loss {done['loss']:.4f} nats a token"
    text += f"; left out: {done['too_long']} too long, {done['failures']} failed\n{done['model']}"
    if settings.lora.rank:
        adapter, merged = shell_word(done["model"]), shell_word(out / "model")
        text += f"\nMerge it into its model: ragen-agent sft merge {adapter} --out {merged}"
    _print(options, done, text)
    return 0


def _merge(options: argparse.Namespace) -> int:
    from ragen_agent.models.parameters import merge_adapter
    from ragen_agent.run.run_folder import RunFolder, families_met
    from ragen_gym.core.seen import SEEN_FILE, find_seen, read_seen, write_seen

    base, notice = merge_adapter(options.adapter, options.out, options.base)
    record, known = find_seen(options.adapter), families_met(base)
    if record is not None and known is not None:
        write_seen(options.out / SEEN_FILE, read_seen(record) | known)
    else:  # what it was trained on is not known
        RunFolder(options.out).note_versions()
    text = "\n".join(filter(None, (f"{options.out}: {base} with the adapter in it", notice)))
    _print(options, {"out": str(options.out), "base": str(base), "notice": notice}, text)
    return 0


def _display() -> Any:
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import rich_console

    return Display(rich_console(stderr=True))


def _print(options: argparse.Namespace, record: Mapping[str, Any], text: str) -> None:
    print_json(record) if options.json else print(text)
