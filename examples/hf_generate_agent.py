# Shows:    an agent of your own around transformers' generate(), on the levels of the benchmark.
# Install:  pip install '.[bench]' torch transformers
# Run:      python examples/hf_generate_agent.py Qwen/Qwen3-0.6B    prints success, and the share of malformed replies.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen_gym.bench.agent import Answer, Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import load_suite


class GenerateAgent:
    """Answers the conversation so far. For speed use ``hf:PATH``, which answers many conversations together."""

    concurrency = 1  # one conversation at a time

    def __init__(self, model: str, max_tokens: int) -> None:
        self.name = f"generate:{model}"
        self.settings = {"max_tokens": max_tokens}  # what decides the answers; written into the run
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model)
        self.max_tokens = max_tokens

    async def reply(self, messages: Sequence[dict[str, Any]], task: Task) -> Answer:
        """The next reply: messages[0] is the system's, messages[-1] the user's."""
        torch.manual_seed(task.seed + len(messages))  # a repeated run samples the same
        prompt = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        length = prompt["input_ids"].shape[1]
        with torch.inference_mode():
            ids = self.model.generate(
                **prompt, max_new_tokens=self.max_tokens, do_sample=True, temperature=task.temperature, top_k=0
            )[0, length:]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Answer(text, prompt_tokens=length, completion_tokens=len(ids))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Benchmark a model by transformers' generate().")
    parser.add_argument("model", help="name or folder")
    parser.add_argument("--split", default="frozen_lake", help="a split of the suite smoke")
    parser.add_argument("--limit", type=int, default=8, help="levels")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a reply")
    parser.add_argument("--out", type=Path, default=Path("runs/generate"), help="folder; the same command resumes it")
    arguments = parser.parse_args()
    suite = load_suite("smoke")
    agent = GenerateAgent(arguments.model, arguments.max_tokens)
    options = RunOptions(splits=(arguments.split,), limit=arguments.limit, concurrency=agent.concurrency)
    run_suite(suite, agent, arguments.out, options)
    summary = score(suite, ResultsFolder(arguments.out).records(), agent.name)["splits"][arguments.split]
    for line in ("success", "random", "blind", "optimal"):
        if rate := summary.get(line):
            print(f"{line:8} {rate['rate']:6.1%} ({rate['low']:.1%} to {rate['high']:.1%})")
    print(f"malformed replies {summary['malformed']['rate']:.1%}")
    print(f"every move as a page: ragen-gym bench report {arguments.out} --out report.html")
