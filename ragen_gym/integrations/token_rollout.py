"""A rollout as a row of token ids, for trainers whose engines take ids and give ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen_gym.envs.reply import open_thinking
from ragen_gym.integrations.rollout import Rollout

_MARK = "@@reply@@"


class TokenRollout:
    """A rollout whose sampled ids stay as they were sampled; what the chat template puts between them is masked.

    Args:
        rollout: an episode that has begun.
        tokenizer: of Hugging Face, with a chat template.
        template: further variables of the template, such as ``enable_thinking=False``.

    Attributes:
        prompt: the ids up to the first reply.
        ids: those after the prompt: replies, and what is between them.
        mask: for each of ``ids`` 1 if it was sampled, else 0.
        log_probs: for each of ``ids`` the log-probability that it was sampled with; 0 where none was given.
    """

    def __init__(self, rollout: Rollout, tokenizer: Any, **template: Any) -> None:
        self.rollout, self._tokenizer, self._template = rollout, tokenizer, template
        text = self._text(rollout.messages)
        self._begun = open_thinking(text, rollout.messages[-1]["content"])
        self.prompt: list[int] = self._encode(text)
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.log_probs: list[float] = []

    def reply(self, sampled: Sequence[int], log_probs: Sequence[float] | None = None, limit: int | None = None) -> bool:
        """Play a reply, and add what comes before the next one.

        Args:
            sampled: its ids, the one that ended it included.
            log_probs: theirs.
            limit: of ``ids``; None for no limit.

        Returns:
            Whether another reply is due: not where the episode is over, or where ``limit`` leaves no room for one.
        """
        self._add(sampled, 1, log_probs)
        text = self._tokenizer.decode(sampled, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        message = self.rollout.reply(text, begun=self._begun)
        if self.rollout.over:
            return False
        glue = self._glue(message, sampled)
        if limit is not None and len(self.ids) + len(glue) >= limit:
            return False
        self._add(glue, 0)
        return True

    def _add(self, ids: Sequence[int], mask: int, log_probs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs

    def _glue(self, message: str, sampled: Sequence[int]) -> list[int]:
        """The ids between two replies: the end of the first, if it was not sampled, and the next user message."""
        turns = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}]
        text = self._text([*turns, {"role": "user", "content": message}]).partition(_MARK)[2]
        ids = self._encode(text)
        return ids[1:] if ids[:1] == list(sampled[-1:]) else ids

    def _text(self, messages: list[dict[str, str]]) -> str:
        template = {**self._template, "add_generation_prompt": True, "tokenize": False}
        return str(self._tokenizer.apply_chat_template(messages, **template))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
