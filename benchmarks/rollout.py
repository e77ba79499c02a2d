"""The local engine compared with ``transformers.generate``: ``python -m benchmarks.rollout``.

Both play the same levels through the same loop, with the same model, batch, temperature and budgets. At each turn
``generate`` is given the whole history of every episode, padded on the left, and reads it anew; the engine keeps its
cache over the turns. Both give the tokens and their log-probs, which training needs. Rates are sampled tokens in a
second of CPU time, on one thread, everything included: prompts, chat templates, parsing, the games. The two take
turns, and the median of the runs counts. Written are ``rollout.json`` and ``rollout.md``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from benchmarks import machine, markdown_table, page_parser, write_results
from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference import Engine, RowImages, Sampled
from ragen_agent.inference.torch_engine import PADDING, TorchEngine
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.sft.trainer import fit
from ragen_agent.tokens.rollout import Instance, group, play
from ragen_agent.tokens.trajectory import without_failed

GAME = "FrozenLake"
TURNS = (1, 2, 5, 10)
DEMONSTRATIONS = 4000


class GenerateEngine:
    """``transformers.generate``, once a turn, on the whole history: what a loop without a cache of its own does."""

    def __init__(self, engine: TorchEngine) -> None:
        self.model, self.stop_ids = engine.model, engine.stop_ids
        self.suppressed = torch.nonzero(engine.bias).flatten().tolist()
        self.rows_of: list[list[int]] = []
        self.temperature = 1.0

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        episodes: Sequence[int] | None = None,
        images: RowImages = None,
    ) -> GenerateEngine:
        """See ``Engine.start``; it draws from the global generator, as ``generate`` does."""
        torch.manual_seed(seed)
        self.rows_of, self.temperature = [list(prompt) for prompt in prompts], temperature
        return self

    def max_rows(self, tokens: int) -> int:
        """See ``Engine.max_rows``: no bound."""
        return 1 << 30

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int], *, images: RowImages = None) -> None:
        """See ``GenerationSession.join``."""
        self.rows_of += [list(prompt) for prompt in prompts]

    def close(self) -> None:
        """See ``GenerationSession.close``."""

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """See ``GenerationSession.reply``."""
        width = max(map(len, self.rows_of))
        padding = [width - len(row) for row in self.rows_of]
        ids = torch.tensor([[PADDING] * pad + row for pad, row in zip(padding, self.rows_of, strict=True)])
        config = GenerationConfig(
            do_sample=True,
            temperature=self.temperature,
            top_k=0,
            max_new_tokens=max(limits),
            eos_token_id=list(self.stop_ids),
            pad_token_id=PADDING,
            suppress_tokens=self.suppressed or None,
            return_dict_in_generate=True,
            output_scores=True,
        )
        mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long()
        with torch.inference_mode():
            generate: Any = self.model.generate
            output = generate(ids, attention_mask=mask, generation_config=config)
            new = output.sequences[:, width:]
            scores = torch.stack(output.scores, 1).log_softmax(-1).gather(2, new[:, :, None])[:, :, 0].tolist()
        replies: list[Sampled | None] = []
        for row, tokens, log_probs, limit in zip(self.rows_of, new.tolist(), scores, limits, strict=True):
            stops = [place + 1 for place, token in enumerate(tokens) if token in self.stop_ids]
            reply = tokens[: min([limit, *stops[:1]])]
            row += reply
            replies.append(Sampled(reply, log_probs[: len(reply)]))
        return replies

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]], *, images: RowImages = None) -> None:
        """See ``GenerationSession.feed``."""
        self.rows_of = [self.rows_of[row] + list(new) for row, new in zip(rows, ids, strict=True)]


PAGE = """\
# The local engine

Written by `python -m benchmarks.rollout`. The engine of `ragen-agent train` and `transformers.generate` play the same
levels through the same loop, with the same model, batch of {batch}, temperature and budgets. `generate` reads every
episode's whole history anew at each turn; the engine keeps its cache over the turns, reads what rows have in common
once, and gives the row of an episode that has ended to the next. Sampled tokens a second of CPU time on one thread,
everything included: prompts, chat templates, parsing, the games. Medians of {runs} runs, in turn.

Machine: {machine}. The small model of {parameters:,} parameters, {game}.

{table}

The untrained model hardly ever answers in the right form, so its episodes take all their turns.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit code."""
    parser = page_parser("rollout", __doc__)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs to take the median of (default 5)")
    arguments = parser.parse_args(argv)
    config = with_settings(Config(), {**default_settings(GAME), "game": GAME})
    agent = _warm(config)
    batch = config.training.groups * config.training.group_size
    print(f"Sampled tokens a second, batch {batch}, one thread:")
    rates = {"the default run, after imitation": _compare(agent, config, arguments.runs, "after imitation")}
    untrained = Policy.build(config)  # its replies are never valid, so every episode takes all its turns
    for turns in TURNS:
        longer = replace(config, turns=replace(config.turns, max_turns=turns, max_actions=100))
        title = f"{turns} turn{'s' * (turns > 1)}, untrained"
        rates[title] = _compare(replace(untrained, config=longer), longer, arguments.runs, title)
    results = {
        "machine": machine("torch"),
        "runs": arguments.runs,
        "batch": batch,
        "parameters": sum(parameter.numel() for parameter in agent.model.parameters()),
        "rates": rates,
    }
    write_results(arguments.out, "rollout", results, _page(results))
    return 0


def _page(results: dict[str, Any]) -> str:
    rows = [
        [what, f"{r['turns']:.1f}", f"{r['engine']:,.0f}", f"{r['generate']:,.0f}", f"{r['ratio']:.2f}"]
        for what, r in results["rates"].items()
    ]
    table = markdown_table(["what", "turns an episode", "engine", "`generate`", "ratio"], rows)
    about = {name: results[name] for name in ("machine", "runs", "batch", "parameters")}
    return PAGE.format(**about, game=GAME, table=table)


def _warm(config: Config) -> Policy:
    """A model that answers in the right form, by imitating some of the run's demonstrations once."""
    agent = Policy.build(config)
    seeds = np.random.default_rng(0).integers(2**62, size=DEMONSTRATIONS)
    instances = [Instance(int(seed), index) for index, seed in enumerate(seeds)]
    rows = demonstrate(agent.processes("train", 1)[0], instances, config.demonstrations, seed=0)
    optimiser = torch.optim.AdamW(agent.model.parameters(), lr=config.warm_start.learning_rate)
    batches = [rows[start : start + config.warm_start.batch] for start in range(0, len(rows), config.warm_start.batch)]
    fit(agent.model, optimiser, batches, agent.engine.bias)
    return agent


def _compare(agent: Policy, config: Config, runs: int, title: str) -> dict[str, float]:
    """Tokens a second of both, by turns; the first run of each only warms up."""
    settings = config.training
    processes = agent.processes("train", settings.groups * settings.group_size)
    instances = group(range(settings.groups), settings.group_size)
    assert isinstance(agent.engine, TorchEngine)
    engines: dict[str, Engine] = {"engine": agent.engine, "generate": GenerateEngine(agent.engine)}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    turns = 0.0
    for run in range(runs + 1):
        for name, engine in engines.items():
            begun = time.process_time()
            played = play(engine, processes, instances, temperature=settings.temperature, seed=run)
            spent = time.process_time() - begun
            without_failed(played)  # raises if nothing was measured
            if run:
                rates[name].append(sum(int(t.sampled.sum()) for t in played) / spent)
            turns = float(np.mean([len(t.turn_ends) for t in played]))
    found = {name: statistics.median(values) for name, values in rates.items()}
    found |= {"ratio": found["engine"] / found["generate"], "turns": turns}
    print(
        f"{title}: engine {found['engine']:,.0f}, generate {found['generate']:,.0f}, ratio {found['ratio']:.2f} "
        f"({turns:.1f} turns an episode)",
        flush=True,
    )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
