"""The record of the speedrun: a language model learns to solve lakes from scratch, in a quarter of a minute.

``python -m benchmarks.speedrun`` measures this file and checks what it trained; benchmarks/speedrun.md has the rules.
The fastest way we know is imitation of shortest ways, by three ideas; the options in brackets undo two of them.

1. A reply plans the whole way. Only lakes whose goal is at most five moves away are shown, one reply each.
2. The tokenizer spells what all prompts share in a few ids, so a demonstration has 35 ids and not 104
   (``--frame suite``).
3. Matrices take orthogonal steps, whatever the scale of their gradients: Muon (``--step adamw``).

Install:  pip install '.[agent]'
Run:      python examples/speedrun.py --seed 0 --out runs/speedrun
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Tokenizer

from ragen_agent import ChatFormat
from ragen_agent.config import SmallModel
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import TEMPLATE, build_model, build_tokenizer
from ragen_gym import make_turn
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.frozen_lake import FrozenLake

Boards = NDArray[np.uint8]
MOVES = 5  # in a reply, at most
THOUGHT = "<think></think>"


@dataclass(frozen=True)
class Settings:
    """Every number of the run. The defaults are the record."""

    seed: int = 0
    out: Path = Path("runs/speedrun")
    lakes: int = 40_000  # drawn; those that are equal or too far are dropped
    frame: str = "short"  # ids of the prompts' common text; or "suite": the tokenizer of every game
    step: str = "muon"  # or "adamw", for the matrices too
    steps: int = 320
    batch: int = 64
    rate: float = 3e-3  # of AdamW
    muon_rate: float = 2e-2


def make_env(split: str) -> TurnEnv:
    """The task: 4 x 4 lakes without slip that the blind script loses, in two replies of at most five moves each."""
    return make_turn(
        "FrozenLake",
        split=split,
        size=4,
        success_rate=1.0,
        min_path=3,
        beyond_blind=True,
        max_turns=2,
        max_actions_per_turn=MOVES,
        max_actions=10,
    )


# The lakes, and the shortest ways on all of them at once.


def ways(game: FrozenLake, boards: Boards) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Moves of a shortest way, int64 (n, MOVES) with -1 after its end, and its length, int64 (n,)."""
    targets = np.array(game.params[0]).reshape(-1, len(game.Action), 3)[:, :, 0]  # without slip
    free = (boards != game.Tile.HOLE) & (boards <= game.Tile.PLAYER)
    distance = np.where(boards == game.Tile.GOAL, 0, 99)
    for _ in range(game.height * game.width):
        nearer = distance[:, targets].min(2) + 1
        distance = np.where(free, np.minimum(distance, nearer), distance)
    rows, cell = np.arange(len(boards)), (boards == game.Tile.PLAYER).argmax(1)
    length, moves = distance[rows, cell], np.full((len(boards), MOVES), -1)
    for number in range(MOVES):
        ahead = distance[rows[:, None], targets[cell]]
        going = distance[rows, cell] > 0
        moves[:, number] = np.where(going, ahead.argmin(1), -1)
        cell = np.where(going, targets[cell, ahead.argmin(1)], cell)
    return moves, length


def demonstrated(env: TurnEnv, settings: Settings) -> tuple[Boards, NDArray[np.int64]]:
    """Training lakes, uint8 (n, cells), each once, and the moves of their replies, int64 (n, MOVES)."""
    game = env.game
    assert isinstance(game, FrozenLake)
    rng = np.random.default_rng(settings.seed)
    boards = np.unique(game.generate(rng.integers(2**63, size=settings.lakes).astype(np.uint64), "train"), axis=0)
    moves, length = ways(game, boards)
    near = length <= MOVES  # the second reply is only needed by lakes that are not shown
    return boards[near], moves[near]


# Their token ids: the prompts differ in the cells of the board only.


def short_tokenizer(env: TurnEnv) -> Qwen2Tokenizer:
    """A tokenizer with one id for each text that all prompts share, each symbol, and each move with its separator."""
    env.reset(seed=0)
    before, after = env.message_text.split(env.board)
    names, symbols = env.action_names, env.env.vocabulary.symbols
    words = [
        f"system\n{env.instructions}",
        f"user\n{before}",
        after.removeprefix("\n"),  # the end of a row belongs to its last symbol
        *symbols,
        *(f"{symbol}\n" for symbol in symbols),
        *(f"{role}\n" for role in ("system", "user", "assistant")),
        f"{THOUGHT}<answer>",
        "</answer>",
        *names,
        *(f" || {name}" for name in names),
    ]
    control = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    ids = dict.fromkeys([*control, *words, *sorted(ByteLevel.alphabet())])
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(ids)},
        merges=[],
        pad_token=control[0],
        eos_token=control[2],
        unk_token=control[0],
        additional_special_tokens=[control[1]],
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def encoded(env: TurnEnv, chat: ChatFormat, boards: Boards, moves: NDArray[np.int64]) -> tuple[Tensor, Tensor, int]:
    """Demonstrations as ids, int64 (n, width), padded on the right; the replies' lengths; the prompt's length."""
    env.reset(seed=0)
    prompt = np.array(chat.prompt_ids(env.instructions, env.message_text))
    symbols = env.env.vocabulary.symbols
    ids = chat.tokenizer.convert_tokens_to_ids
    inner, last = (np.array([ids(symbol + end) for symbol in symbols]) for end in ("", "\n"))
    # The cells of the last board among the ids: the symbols' meanings stand in the instructions, before it.
    cells = np.flatnonzero(np.isin(prompt, [*inner, *last]))[-16:]
    rows = np.tile(prompt, (len(boards), 1))
    tiles = boards[:, boards[0] < len(symbols)]  # without the ends of the board's rows
    rows[:, cells] = np.where(np.isin(prompt[cells], last), last[tiles], inner[tiles])
    plans = list(map(tuple, moves.tolist()))
    written = {plan: chat.reply_ids(_reply(env, plan)) for plan in set(plans)}
    lengths = torch.tensor([len(written[plan]) for plan in plans])
    replies = np.array([written[plan] + [0] * (int(lengths.max()) - len(written[plan])) for plan in plans])
    return torch.from_numpy(np.concatenate([rows, replies], 1)), lengths, len(prompt)


def _reply(env: TurnEnv, plan: tuple[int, ...]) -> str:
    return THOUGHT + write_reply([env.action_names[move] for move in plan if move >= 0])


# The optimisers.


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonal matrix nearest to the momentum, by five Newton-Schulz iterations (K. Jordan 2024)."""

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient."""
        for options in self.param_groups:
            for matrix in options["params"]:
                mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - options["momentum"])
                update = matrix.grad.lerp(mean, options["momentum"])
                tall = update.shape[0] > update.shape[1]
                update = update.T if tall else update
                update = update / (update.norm() + 1e-7)
                for _ in range(5):
                    square = update @ update.T
                    update = 3.4445 * update + (-4.7750 * square + 2.0315 * square @ square) @ update
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.sub_(update.T if tall else update, alpha=options["lr"] * scale)


def optimisers(model: PreTrainedModel, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks and AdamW for the rest, or AdamW alone."""
    inner = [weight for weight in model.base_model.layers.parameters() if weight.ndim == 2]
    chosen = inner if settings.step == "muon" else []
    rest = [weight for weight in model.parameters() if all(weight is not each for each in chosen)]
    adamw = torch.optim.AdamW(rest, settings.rate, betas=(0.9, 0.99), weight_decay=0.0)
    return [adamw, Muon(chosen, settings.muon_rate)] if chosen else [adamw]


# Training.


def main(settings: Settings) -> None:
    """Trains, and writes the checkpoint and the ledger: the lakes and tokens that it took."""
    env = make_env("train")
    boards, moves = demonstrated(env, settings)
    tokenizer: PreTrainedTokenizerBase = short_tokenizer(env) if settings.frame == "short" else build_tokenizer()
    chat = ChatFormat.from_tokenizer(tokenizer)
    model = build_model(SmallModel(), tokenizer, settings.seed)
    ids, lengths, start = encoded(env, chat, boards, moves)
    written = set(ids[:, start:].unique().tolist())  # a reply holds no other ids
    model.generation_config.suppress_tokens = [each for each in range(len(tokenizer)) if each not in written]
    bias = TorchEngine(model, chat.stop_ids).bias
    seen = torch.zeros(len(ids), dtype=torch.bool)
    both = optimisers(model, settings)
    rates = [options["lr"] for each in both for options in each.param_groups]
    rng = torch.Generator().manual_seed(settings.seed)
    batches = (rows for _ in count() for rows in torch.randperm(len(ids), generator=rng).split(settings.batch))
    for number, rows in enumerate(islice(batches, settings.steps)):
        for optimiser, rate in zip(both, rates, strict=True):  # up over 30 steps, and down along a line
            optimiser.param_groups[0]["lr"] = rate * min((number + 1) / 30, 1 - 0.95 * number / settings.steps)
        replied = torch.arange(ids.shape[1] - start) < lengths[rows][:, None]
        hidden = model.base_model(ids[rows, :-1], use_cache=False).last_hidden_state[:, start - 1 :][replied]
        loss = torch.nn.functional.cross_entropy(
            model.get_output_embeddings()(hidden) + bias, ids[rows, start:][replied]
        )
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in both:
            optimiser.step()
        seen[rows] = True
    settings.out.mkdir(parents=True, exist_ok=True)
    save_checkpoint(model, tokenizer, settings.out / "model")
    np.save(settings.out / "lakes.npy", boards[seen.numpy()])
    ledger = {"sampled_tokens": 0, "shown_tokens": int(lengths[seen].sum())}
    (settings.out / "ledger.json").write_text(json.dumps(ledger))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Imitation of shortest ways on lakes, as fast as we can.")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value) if not isinstance(value, Path) else Path, default=value)
    torch.set_num_threads(1)
    main(Settings(**vars(parser.parse_args())))
