# Shows:    a model behind any OpenAI-compatible endpoint on frozen levels, beside the reference policies.
# Install:  pip install '.[bench]', and start a server such as vLLM, SGLang or llama.cpp.
# Run:      python examples/benchmark_openai.py MODEL --base-url http://127.0.0.1:8000/v1    prints rates of success.
from __future__ import annotations

import argparse
from pathlib import Path

from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import load_suite

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Benchmark a model behind an OpenAI-compatible endpoint.")
    parser.add_argument("model", help="the name that the server knows")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="the key is read from OPENAI_API_KEY")
    parser.add_argument("--suite", default="smoke", help="ragen-gym bench suites lists them")
    parser.add_argument("--split", action="append", default=[], help="a split of the suite; all by default")
    parser.add_argument("--limit", type=int, default=None, help="the first so many levels of each split")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a reply, reasoning included")
    parser.add_argument("--out", type=Path, default=Path("runs/openai"), help="folder; the same command resumes it")
    arguments = parser.parse_args()
    suite = load_suite(arguments.suite)
    agent = make_agent(f"openai:{arguments.model}", base_url=arguments.base_url, max_tokens=arguments.max_tokens)
    options = RunOptions(splits=tuple(arguments.split), limit=arguments.limit)
    try:
        outcome = run_suite(suite, agent, arguments.out, options)
    except ValueError as error:  # such as a server that cannot be reached
        parser.error(str(error))
    if outcome.failures:
        print(f"not counted: {dict(outcome.failures)}; the same command plays these episodes again")
    summary = score(suite, ResultsFolder(arguments.out).records(), agent.name)
    for name, split in summary["splits"].items():
        print(f"\n{name}, {split['success']['n']} episodes")
        for line in ("success", "random", "blind", "optimal"):
            rate = split.get(line)
            if rate and rate["rate"] is not None:  # none where no episode counts
                print(f"  {line:9}{rate['rate']:6.1%} ({rate['low']:.1%} to {rate['high']:.1%})")
        if malformed := split["malformed"]:
            print(f"  malformed{malformed['rate']:6.1%} of the replies {malformed['problems']}")
    print(f"\nevery move as a page: ragen-gym bench report {arguments.out} --out report.html")
