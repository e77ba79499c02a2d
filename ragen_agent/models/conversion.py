"""Conversion of GGUF files to Hugging Face folders.

transformers dequantises the weights. Details of the tokenizer that a GGUF file does not hold, or that transformers
misreads, are corrected, so that the folder behaves like the model's own on the Hub.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

from ragen_agent.models.catalogue import NamedModel

#: Kinds of token in a GGUF file: learned, never written by a user, and given by the model's makers.
NORMAL, CONTROL, OF_USERS = 1, 3, 4


def convert(model: NamedModel, file: Path, folder: Path) -> None:
    """Writes the folder: float32 weights, and the tokenizer that the model was trained with.

    The peak of memory is some six bytes a weight of the file.

    Raises:
        ValueError: ``file`` is not a GGUF file that transformers reads.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO()):  # its bar
        try:
            weights = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"{model.file} is no GGUF file that transformers reads: {error}") from error
    if model.tied:
        _tie(weights)
    SPLITS[model.splits](tokenizer, file)
    tokenizer.eos_token, tokenizer.pad_token = model.end_of_turn, model.padding or model.end_of_turn
    tokenizer.clean_up_tokenization_spaces = False
    if model.template:
        tokenizer.chat_template = model.template
    weights.config.name_or_path = tokenizer.name_or_path = model.hub
    for config in (weights.config, weights.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    tokenizer.model_max_length = weights.config.max_position_embeddings
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tie(weights: Any) -> None:
    """One matrix for embeddings and output: the output's, which the file quantises less."""
    weights.get_input_embeddings().weight = weights.get_output_embeddings().weight
    weights.config.tie_word_embeddings = True


def _digits(tokenizer: Any, file: Path) -> None:
    """Bytes, each digit by itself: a split that a GGUF file does not hold."""
    from tokenizers import decoders, pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()


def _of_file(tokenizer: Any, file: Path) -> None:
    """The split that transformers reads; special tokens whole, and no token for rows that pad the embeddings."""
    from tokenizers import AddedToken, models

    fields, tokens, kinds = _vocabulary(file)
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    words = {token: place for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == NORMAL}
    tokenizer.backend_tokenizer.model = models.BPE(words, merges)
    tokenizer.unk_token = None  # bytes spell everything
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, OF_USERS):
            special = kind == CONTROL
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)], special_tokens=special)


def _sentencepiece(tokenizer: Any, file: Path) -> None:
    """Merges in the order of the ids of what they give, which transformers does not find in a GGUF file."""
    from tokenizers import AddedToken, models

    _, tokens, kinds = _vocabulary(file)
    ids = {
        token: place
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (NORMAL, OF_USERS)
    }
    merges: list[tuple[str, str]] = []
    for token, place in ids.items():
        if kinds[place] == NORMAL:  # those of users are whole: line breaks and spaces, never merged
            halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            known = [(one, other) for one, other in halves if one in ids and other in ids]
            merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    whole = {token: place for place, token in enumerate(tokens)}
    tokenizer.backend_tokenizer.model = models.BPE(
        whole, merges, byte_fallback=True, unk_token=tokenizer.unk_token, fuse_unk=True
    )
    of_users = [token for token, kind in zip(tokens, kinds, strict=True) if kind == OF_USERS]
    tokenizer.add_tokens([AddedToken(token, normalized="▁" in token) for token in of_users])
    turns = [AddedToken(token, normalized=False, special=True) for token in ("<start_of_turn>", "<end_of_turn>")]
    tokenizer.add_tokens(turns, special_tokens=True)


def _vocabulary(file: Path) -> tuple[Any, list[str], list[int]]:
    """The file's fields, its tokens, and the kind of each."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    tokens, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    return fields, tokens, kinds


SPLITS = {"digits": _digits, "file": _of_file, "sentencepiece": _sentencepiece}
"""Corrections of a tokenizer, by ``NamedModel.splits``."""
