"""A chat template taken apart into the constant texts between the messages.

A template is a program; it is analysed by rendering marked conversations and locating the marks. A template that fits
an append-only row of tokens writes, for every conversation,

    before_system SYSTEM before_user USER opening REPLY after_reply USER opening REPLY after_reply USER
    opening

with the same texts at every turn and the messages unchanged. A template that rewrites earlier replies (another header,
another text) cannot be appended to, but each turn can be encoded anew (``rewrites``). Any other template is refused
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Render = Callable[[list[dict[str, Any]], bool], str]
"""(messages, add_generation_prompt) -> the template's text; raises whatever the template raises."""

Content = str | Sequence[Mapping[str, Any]]
"""Content of a message: a text, or parts: ``{"type": "text", "text": ...}`` and ``{"type": "image"}``."""


_SYSTEM = "Marksystem"
_USERS = ("Markfirst", "Marksecond", "Markthird")
_REPLIES = ("Markreplya", "Markreplyb")
_AWKWARD = "\n {} <b>&amp; \"'\\n {{{{ 1 }}}}\n\n #P_O || é √  "
_THOUGHTS = ("<think>{} Markthought</think><answer>Up</answer>", "<think>\nMarkthought {}\n</think>\n\nUp")


@dataclass(frozen=True)
class TemplateText:
    """The constant texts of a chat template, and its changes to messages."""

    before_system: str  # text before the system message
    before_user: str  # text between the system message and the first user message
    #: text before the first user message when there is no system message; None if the template demands one
    without_system: str | None
    opening: str  # text between a user message and the reply that is about to begin (generation prompt included)
    past_opening: str  # the same text before an earlier reply
    after_reply: str  # text between a reply and the next user message
    closing: str  # text after a reply that ends the conversation
    #: True if the template has no place for a system message that stays the same as turns are added; before_system and
    #: before_user are then empty
    fold_system: bool
    trims_messages: bool  # True if it strips white space at the ends of system or user messages
    trims_replies: bool  # True if it strips white space at the ends of earlier replies
    keeps_thinking: bool  # False if it drops or rewrites the thinking in earlier replies
    rewrites: str = ""  # other rewriting of earlier replies, which rules out appending; or empty

    def deviations(self, *, appended: bool) -> tuple[str, ...]:
        """Differences between a row of tokens and the template's own text.

        ``appended``: True if turns are appended and nothing is rewritten; False if each turn begins with the template's
        text of the conversation.
        """
        notes = []
        if self.fold_system:
            notes.append("the template has no lasting place for a system message; it begins the first user message")
        if not appended:
            return tuple(notes)
        if not self.keeps_thinking:
            notes.append("the template drops the thinking of earlier replies; the row keeps every sampled token")
        if self.trims_replies:
            notes.append("the template strips white space at the ends of earlier replies; the row keeps it")
        if self.opening != self.past_opening:
            notes.append(
                f"the template writes {self.opening!r} before a requested reply, {self.past_opening!r} "
                "before an earlier one; the row keeps the first"
            )
        return tuple(notes)


@dataclass(frozen=True)
class _Frame:
    """The texts around the messages.

    ``starts`` are the texts before the system message and before the first user message, or only the latter in a
    frame without a system message.
    """

    starts: tuple[str, ...]
    past_opening: str
    after_reply: str
    opening: str

    def fill(self, messages: Sequence[str]) -> str:
        """The text of a conversation that a reply is about to continue."""
        texts = list(self.starts)
        turns = (len(messages) - len(self.starts)) // 2
        texts += [self.past_opening, self.after_reply] * turns + [self.opening]
        return "".join(text + message for text, message in zip(texts, [*messages, ""], strict=True))


@dataclass(frozen=True)
class TokenizerTemplate:
    """A tokenizer's chat template as a ``Render`` that can be pickled.

    Attributes:
        tokenizer: has the template.
        options: further variables of the template.
        lists: True if contents are given as lists of parts.
        opening: text after the generation prompt.
    """

    tokenizer: PreTrainedTokenizerBase
    options: Mapping[str, Any]
    lists: bool = False
    opening: str = ""

    def __call__(self, messages: list[dict[str, Any]], generate: bool) -> str:
        """See ``Render``."""
        if self.lists:
            messages = [{**each, "content": parts_of(each["content"])} for each in messages]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate, **self.options
        )
        assert isinstance(text, str)
        return text + self.opening * generate


def parts_of(content: Content) -> Sequence[Mapping[str, Any]]:
    """A message as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def open_template(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
) -> tuple[TokenizerTemplate, TemplateText]:
    """A tokenizer's chat template and its texts; visual templates that only accept lists of parts work too.

    Raises:
        ValueError: see ``read_template``.
    """
    render = TokenizerTemplate(tokenizer, dict(options))
    try:
        return render, read_template(render)
    except ValueError as refusal:
        render = replace(render, lists=True)
        try:
            return render, read_template(render)
        except ValueError:
            raise refusal from None


def read_template(render: Render) -> TemplateText:
    """Take a template apart.

    Args:
        render: renders a conversation; see ``Render``.

    Raises:
        ValueError: the template cannot be used; the message gives the reason.
    """
    bare, _ = _try_frame(render, system=False)
    frame, refusal = _try_frame(render, system=True)
    system = frame is not None
    frame = frame or bare
    if frame is None:
        raise ValueError(refusal)
    if bare and replace(bare, starts=frame.starts) != frame:
        bare = None
    closing = _render(render, _conversation([_SYSTEM] * system + [_USERS[0], _REPLIES[0]], system), False)
    trims_replies, changed = _trims_replies(render, frame)
    return TemplateText(
        before_system=frame.starts[0] if system else "",
        before_user=frame.starts[1] if system else "",
        without_system=bare.starts[0] if bare else None,
        opening=frame.opening,
        past_opening=frame.past_opening,
        after_reply=frame.after_reply,
        closing=closing.rpartition(_REPLIES[0])[2],
        fold_system=not system,
        trims_messages=_trims_messages(render, frame),
        trims_replies=trims_replies,
        keeps_thinking=all(_same(render, frame, _USERS, [t.format(r) for r in _REPLIES]) for t in _THOUGHTS),
        rewrites=_other_header(render, frame) or changed,
    )


def read_image_text(render: Render) -> str:
    """The text that the template writes for a picture among the texts of a user message, the same at every turn.

    Raises:
        ValueError: it does not accept pictures, numbers them, or changes the texts around them.
    """
    marks = [f"{mark} \n" for mark in (*_USERS, "Markfourth")]
    messages: list[dict[str, Any]] = []
    for before, after in (marks[:2], marks[2:]):
        shown = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after}]
        messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": _REPLIES[0]}]
    texts = _between(_render(render, messages[:-1], True), marks)
    first, second = texts[1], texts[3]
    if not first:
        raise ValueError("the chat template writes nothing for a picture")
    if first != second:
        raise ValueError(
            f"the chat template writes {first!r} for the first picture but {second!r} for the second; a row of tokens "
            "needs them to be the same at every turn (turns.template_options may turn a numbering off)"
        )
    return first


def _try_frame(render: Render, system: bool) -> tuple[_Frame | None, str]:
    """The frame, or None and the reason."""
    try:
        return _read_frame(render, system), ""
    except ValueError as refusal:
        return None, str(refusal)


def _read_frame(render: Render, system: bool) -> _Frame:
    """The texts around the messages; the same at every turn and in every prefix of the conversation."""
    marks = [_SYSTEM] * system + [_USERS[0], _REPLIES[0], _USERS[1], _REPLIES[1], _USERS[2]]
    texts = _between(_render(render, _conversation(marks, system), True), marks)
    starts, (past, after, past_again, after_again, opening) = tuple(texts[: 1 + system]), texts[1 + system :]
    if (past, after) != (past_again, after_again):
        raise ValueError(
            f"the chat template writes {past!r} and {after!r} around the first reply but {past_again!r} and "
            f"{after_again!r} around the second; a row of tokens needs them to be the same at every turn"
        )
    frame = _Frame(starts, past, after, opening)
    for length in (1 + system, 3 + system):
        text = _render(render, _conversation(marks[:length], system), True)
        if text != frame.fill(marks[:length]):
            raise ValueError(
                f"the chat template rewrites a conversation when turns are added: {text!r} becomes "
                f"{frame.fill(marks[:length])!r}; a row of tokens can only be appended to"
            )
    return frame


def _other_header(render: Render, frame: _Frame) -> str:
    """The difference between the headers of an earlier and a requested reply; empty if the reply fits both.

    Raises:
        ValueError: no header is written for a requested reply.
    """
    past, opening = frame.past_opening, frame.opening
    if opening.startswith(past) or (past.startswith(opening) and past[len(opening) :].isspace()):
        return ""
    found = f"the chat template writes {past!r} before a past reply but {opening!r} before a requested reply"
    system = len(frame.starts) > 1
    first = _conversation([_SYSTEM] * system + [_USERS[0]], system)
    if _render(render, first, True) == _render(render, first, False):
        raise ValueError(f"{found}; it must write the assistant's header when add_generation_prompt is true")
    return found


def _trims_messages(render: Render, frame: _Frame) -> bool:
    system = [_AWKWARD.format(_SYSTEM)] * (len(frame.starts) > 1)
    users = [_AWKWARD.format(user) for user in _USERS]
    if _same(render, frame, users, _REPLIES, system):
        return False
    if _same(render, frame, [u.strip() for u in users], _REPLIES, [s.strip() for s in system]):
        return True
    raise ValueError(
        "the chat template changes the text of system or user messages (it escapes, reformats or drops "
        "characters); use a template that writes message['content'] as it is or with `| trim`"
    )


def _trims_replies(render: Render, frame: _Frame) -> tuple[bool, str]:
    """True if past replies are stripped of white space, and other changes of their text, thinking apart."""
    replies = [_AWKWARD.format(reply) for reply in _REPLIES]
    if _same(render, frame, _USERS, replies):
        return False, ""
    if _same(render, frame, _USERS, [reply.strip() for reply in replies]):
        return True, ""
    return False, "the chat template changes the text of the assistant's past replies, thinking apart"


def _same(
    render: Render,
    frame: _Frame,
    users: Sequence[str],
    replies: Sequence[str],
    system: Sequence[str] = (_SYSTEM,),
) -> bool:
    """True if the template writes these messages unchanged within the frame's texts."""
    has_system = len(frame.starts) > 1
    contents = [*system[: int(has_system)], users[0], replies[0], users[1], replies[1], users[2]]
    return _render(render, _conversation(contents, has_system), True) == frame.fill(contents)


def _conversation(contents: Sequence[str], system: bool) -> list[dict[str, Any]]:
    roles = ["system"] * system + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def _render(render: Render, messages: list[dict[str, Any]], generate: bool) -> str:
    try:
        return render(messages, generate)
    except Exception as error:  # a template is a foreign program and may raise anything
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template fails on the messages ({roles}): {type(error).__name__}: {error}"
        ) from error


def _between(text: str, marks: Sequence[str]) -> list[str]:
    """The texts before, between and after the marks, each of which must occur once and in order."""
    pieces = []
    rest = text
    for mark in marks:
        if text.count(mark) != 1 or mark not in rest:
            raise ValueError(
                "the chat template does not write every message once and in order "
                f"(of {len(marks)} messages it made {text!r}); use a template that does"
            )
        before, _, rest = rest.partition(mark)
        pieces.append(before)
    return [*pieces, rest]
