"""The fastest file of the speedrun: a language model learns to solve lakes from scratch, in a few seconds.

``python -m benchmarks.speedrun`` measures this file and checks what it trained; benchmarks/speedrun.md has the rules.
The fastest way we know is imitation of shortest ways, by five ideas:

1. A reply plans the whole way. Only lakes whose goal is at most five moves away are shown, one reply each.
2. The tokenizer has one id for each text that all prompts share, for each row of a board, and for each move with the
   text around it. A demonstration has at most 12 ids, where the tokenizer of every game takes 104.
3. One block of GPT-2, whose vectors of position suit a board that never moves. Only keys and values are computed for
   the prompt: queries and all that follows are needed where the reply is written.
4. Matrices take orthogonal steps, whatever the scale of their gradients: Muon.
5. Loading transformers or torch._dynamo takes about as long as training: this file saves and steps without them.

Install:  pip install '.[agent]'
Run:      python examples/speedrun.py --seed 0 --out runs/speedrun
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import count, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ragen_gym import make_turn
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.frozen_lake import FrozenLake

Boards = NDArray[np.uint8]
Moves = NDArray[np.int64]
MOVES = 5  # in a reply, at most
PROMPT = 6  # ids: what stands before the board, its four rows, and what follows
END, WRITTEN = 0, 13  # the id that ends a reply; replies hold the first 13 ids alone
WIDTH, HEADS, CONTEXT = 64, 4, 512
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{{ '<|end|>' if message['role'] == 'assistant' }}\n{% endfor %}{{ 'assistant: ' if add_generation_prompt }}"
)


@dataclass(frozen=True)
class Settings:
    """Every number of the run. The defaults are the last row of benchmarks/speedrun.md."""

    seed: int = 0
    out: Path = Path("runs/speedrun")
    lakes: int = 26_000  # drawn; those that are equal or too far are dropped
    steps: int = 110
    batch: int = 128
    rate: float = 1e-2  # of Adam, for vectors and embeddings
    muon_rate: float = 4e-2


def make_env(split: str) -> TurnEnv:
    """The task: 4 x 4 lakes without slip that the blind script loses, in two replies of at most five moves each."""
    lake: dict[str, Any] = {"size": 4, "success_rate": 1.0, "min_path": 3, "beyond_blind": True}
    return make_turn("FrozenLake", split=split, max_turns=2, max_actions_per_turn=MOVES, max_actions=10, **lake)


# The lakes, and the shortest ways on all of them at once.


def ways(game: FrozenLake, boards: Boards) -> tuple[Moves, Moves]:
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


def demonstrated(env: TurnEnv, settings: Settings) -> tuple[Boards, Moves]:
    """Training lakes, uint8 (n, cells), each once, and the moves of their replies, int64 (n, MOVES)."""
    game = env.game
    assert isinstance(game, FrozenLake)
    rng = np.random.default_rng(settings.seed)
    boards = np.unique(game.generate(rng.integers(2**63, size=settings.lakes).astype(np.uint64), "train"), axis=0)
    moves, length = ways(game, boards)
    near = length <= MOVES  # the second reply is only needed by lakes that are not shown
    return boards[near], moves[near]


# Their token ids.


def words(env: TurnEnv) -> list[str]:
    """The texts of the ids: those that a reply may hold, those around a board, and rows in the order of ``encoded``."""
    env.reset(seed=0)
    before, after = env.message_text.split(env.board)
    first = [f"<think></think><answer>{name}" for name in env.action_names]
    then = [f" || {name}" for name in env.action_names]
    rows = ["".join(row) + "\n" for row in product(env.env.vocabulary.symbols[:4], repeat=4)]
    prompt = [f"system: {env.instructions}\nuser: {before}", f"{after.removeprefix(chr(10))}\nassistant: "]
    return ["<|end|>", *first, *then, *(f"{move}</answer>" for move in then), *prompt, *rows]


def build_tokenizer(env: TurnEnv) -> Tokenizer:
    """A tokenizer with these words, and every byte for texts that no demonstration holds."""
    known = words(env)
    ids = dict.fromkeys([*known, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(ids)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([known[END]])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in known[1:]])
    return tokenizer


def encoded(boards: Boards, moves: Moves) -> tuple[Tensor, Tensor]:
    """Demonstrations as ids, int64 (n, PROMPT + MOVES + 1), padded on the right; the replies' lengths."""
    tiles = boards[:, boards[0] < 4].reshape(len(boards), 4, 4)  # without the ends of the board's rows
    before, after, end = (np.full((len(boards), 1), each) for each in (WRITTEN, WRITTEN + 1, END))
    rows = WRITTEN + 2 + tiles.astype(np.int64) @ 4 ** np.arange(3, -1, -1)
    length = (moves >= 0).sum(1)
    kind = np.where(np.arange(MOVES) + 1 == length[:, None], 2, np.minimum(np.arange(MOVES), 1))  # first, then, last
    replies = np.where(moves >= 0, 1 + 4 * kind + moves, END)
    return torch.from_numpy(np.hstack([before, rows, after, replies, end])), torch.tensor(length + 1)


# The model, by the names of GPT-2.


def weights(ids: int, seed: int) -> dict[str, Tensor]:
    """Weights drawn from the seed."""
    rng, shapes = torch.Generator().manual_seed(seed), {"wte": (ids, WIDTH), "wpe": (CONTEXT, WIDTH)}
    block = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    shapes |= {f"h.0.{name}": (WIDTH * rows, WIDTH * columns) for name, (rows, columns) in block.items()}
    found = {f"{name}.weight": 0.1 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    found |= {f"{name}.bias": torch.zeros(shape[1]) for name, shape in shapes.items() if "h." in name}
    for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        found |= {f"{norm}.weight": torch.ones(WIDTH), f"{norm}.bias": torch.zeros(WIDTH)}
    return {name: weight.requires_grad_() for name, weight in found.items()}


def logits(model: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits of the ids that replies hold, where one is written: (n, length - PROMPT + 1, WRITTEN)."""
    n, length = ids.shape

    def linear(name: str, states: Tensor, columns: slice = slice(None)) -> Tensor:
        weight, bias = (model[f"h.0.{name}.{kind}"][..., columns] for kind in ("weight", "bias"))
        return torch.addmm(bias, states.flatten(0, -2), weight).view(*states.shape[:-1], -1)

    def norm(name: str, states: Tensor) -> Tensor:
        return F.layer_norm(states, (WIDTH,), model[f"{name}.weight"], model[f"{name}.bias"])

    states = F.embedding(ids, model["wte.weight"]) + model["wpe.weight"][:length]
    read, states = norm("h.0.ln_1", states), states[:, PROMPT - 1 :]
    query = linear("attn.c_attn", read[:, PROMPT - 1 :], slice(WIDTH)).view(n, -1, HEADS, WIDTH // HEADS)
    key, value = linear("attn.c_attn", read, slice(WIDTH, None)).view(n, length, 2, HEADS, -1).permute(2, 0, 3, 1, 4)
    seen = torch.ones(length, length, dtype=torch.bool).tril()[PROMPT - 1 :]
    mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=seen)
    states = states + linear("attn.c_proj", mixed.transpose(1, 2).flatten(2))
    inner = F.gelu(linear("mlp.c_fc", norm("h.0.ln_2", states)), approximate="tanh")
    return norm("ln_f", states + linear("mlp.c_proj", inner)) @ model["wte.weight"][:WRITTEN].T


def save(model: dict[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a checkpoint of transformers."""
    ids, end = len(model["wte.weight"]), {"eos_token_id": END, "pad_token_id": END, "bos_token_id": None}
    shape = {"vocab_size": ids, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": 1, "n_head": HEADS}
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    files = {
        "config": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **shape, **end},
        "generation_config": {**end, "do_sample": True, "suppress_tokens": list(range(WRITTEN, ids))},
        "tokenizer_config": {**words, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {f"transformer.{name}": weight.detach() for name, weight in model.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})


# Training.


def adam(state: dict[str, Tensor], gradient: Tensor, number: int) -> Tensor:
    """The direction of Adam's step ``number``, from 1, for one tensor."""
    mean, square = (state.setdefault(name, torch.zeros_like(gradient)) for name in ("mean", "square"))
    mean.lerp_(gradient, 0.1)
    square.lerp_(gradient.square(), 0.01)
    return mean / (1 - 0.9**number) / ((square / (1 - 0.99**number)).sqrt() + 1e-8)


def muon(state: dict[str, Tensor], gradient: Tensor) -> Tensor:
    """The orthogonal matrix nearest to the momentum, by five Newton-Schulz iterations (Muon, K. Jordan 2024)."""
    mean = state.setdefault("mean", torch.zeros_like(gradient))
    mean.lerp_(gradient, 0.1)
    update, tall = gradient.lerp(mean, 0.9), gradient.shape[0] > gradient.shape[1]
    update = (update.T if tall else update) / (update.norm() + 1e-7)
    for _ in range(5):
        square = update @ update.T
        update = torch.addmm(update, -4.7750 * square + 2.0315 * square @ square, update, beta=3.4445)
    return (update.T if tall else update).mul(max(1.0, gradient.shape[1] / gradient.shape[0]) ** 0.5)


def main(settings: Settings) -> None:
    """Trains, and writes the checkpoint and the ledger: the lakes and tokens that it took."""
    env = make_env("train")
    boards, moves = demonstrated(env, settings)
    (ids, lengths), tokenizer = encoded(boards, moves), build_tokenizer(env)
    model = weights(tokenizer.get_vocab_size(), settings.seed)
    states: dict[str, dict[str, Tensor]] = {name: {} for name in model}
    rng, seen = torch.Generator().manual_seed(settings.seed), torch.zeros(len(ids), dtype=torch.bool)
    batches = (rows for _ in count() for rows in torch.randperm(len(ids), generator=rng).split(settings.batch))
    for number, rows in enumerate(islice(batches, settings.steps)):
        replied = torch.arange(MOVES + 1) < lengths[rows][:, None]
        written = logits(model, ids[rows, :-1])
        loss = F.cross_entropy(written[replied], ids[rows, PROMPT:][replied])
        slopes = torch.autograd.grad(loss, [*model.values()])
        scale = min((number + 1) / 10, 1 - 0.95 * number / settings.steps)  # up over 10 steps, and down along a line
        with torch.no_grad():
            for (name, weight), slope in zip(model.items(), slopes, strict=True):
                if "h." in name and slope.ndim == 2:
                    weight.sub_(muon(states[name], slope), alpha=settings.muon_rate * scale)
                else:
                    weight.sub_(adam(states[name], slope, number + 1), alpha=settings.rate * scale)
        seen[rows] = True
    save(model, tokenizer, settings.out / "model")
    np.save(settings.out / "lakes.npy", boards[seen.numpy()])
    ledger = json.dumps({"sampled_tokens": 0, "shown_tokens": int(lengths[seen].sum())})
    (settings.out / "ledger.json").write_text(ledger)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Imitation of shortest ways on lakes, as fast as we can.")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value) if not isinstance(value, Path) else Path, default=value)
    torch.set_num_threads(1)
    main(Settings(**vars(parser.parse_args())))
