"""Ids of conversations: equal to the whole rendered template, and safe against what messages say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ragen_agent import ChatFormat

MakeTokenizer = Callable[[str, str], PreTrainedTokenizerFast]

anything = st.text(st.characters(codec="utf-8"), max_size=20)
known = st.lists(st.sampled_from(["Up", "||", "the", "lake", "goal", "\n"])).map(" ".join)
ordinary = st.text(st.sampled_from("aPO_|<>/.:' \n\t-10ïé√‖")) | anything
thoughts = st.text(st.sampled_from("aU p\n|P_√"), max_size=20)
literals = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|im_", "<", " a", "\n"]),
    min_size=1,
    max_size=6,
).map("".join)


def render(chat: ChatFormat, contents: list[str], generate: bool = True) -> str:
    roles = ["system", "user", *["assistant", "user"] * len(contents)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    text = chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    assert isinstance(text, str)
    return text


def encode(chat: ChatFormat, text: str) -> list[int]:
    return list(chat.tokenizer.encode(text, add_special_tokens=False))


def has_special(chat: ChatFormat, *texts: str) -> bool:
    added = [token.content for token in chat.tokenizer.added_tokens_decoder.values() if token.special]
    return any(name in text for text in texts for name in {*added, *chat.tokenizer.all_special_tokens})


@given(system=ordinary, users=st.lists(ordinary, min_size=1, max_size=3), data=st.data())
def test_row_equals_the_whole_rendered_conversation(
    chat: ChatFormat, system: str, users: list[str], data: st.DataObject
) -> None:
    """For ordinary messages and replies whose ids are the canonical ones of their text."""
    assume(system.strip() and not has_special(chat, system, *users))
    contents, row = [system, users[0]], chat.prompt_ids(system, users[0])
    space = " " if chat.text.opening.endswith(":") else ""
    for user in users[1:]:
        answer = f"<answer>{data.draw(thoughts)}</answer>"
        reply = f"<think>{data.draw(thoughts)}</think>{answer}" if chat.text.keeps_thinking else answer
        row += [*encode(chat, space + reply), chat.end_id, *chat.glue_ids(user)]
        contents += [space + reply, user]
    assert row == encode(chat, render(chat, contents))


@given(system=literals, users=st.lists(literals, min_size=2, max_size=3), plain=ordinary)
def test_no_message_becomes_a_special_token(chat: ChatFormat, system: str, users: list[str], plain: str) -> None:
    """The special tokens are the template's own, and the reader sees the message as it was written."""
    assume(not has_special(chat, plain))
    special = set(chat.tokenizer.all_special_ids) - {chat.tokenizer.unk_token_id}
    system, first, second = system + "x", plain + users[0] + "x", users[1] + plain + "x"

    def structure(ids: list[int]) -> list[int]:
        return [token for token in ids if token in special]

    prompt, glue = chat.prompt_ids(system, first), chat.glue_ids(second)
    assert structure(prompt) == structure(chat.prompt_ids("x", "x"))
    assert structure(glue) == structure(chat.glue_ids("x"))
    if chat.tokenizer.unk_token_id not in [*prompt, *glue]:
        assert chat.tokenizer.decode(prompt) == render(chat, [system, first])
        whole = render(chat, [system, first, "Up", second])
        assert whole.endswith(str(chat.tokenizer.decode(glue)))


def test_merges_cross_the_seam_of_template_and_message(make_tokenizer: MakeTokenizer) -> None:
    """'user: ' and 'helpful' are ' helpful' in one token, as in the whole text."""
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "plain"))
    pieces = [*encode(chat, "system: "), *encode(chat, "helpful")]
    assert chat.prompt_ids("helpful", "x")[: len(pieces)] != pieces
    assert chat.prompt_ids("helpful", "x") == encode(chat, "system: helpful\nuser: x\nassistant:")


def test_chatml_by_hand(make_tokenizer: MakeTokenizer) -> None:
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))
    decode = chat.tokenizer.decode
    prompt = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert decode(chat.prompt_ids("S", "U")) == prompt
    assert decode(chat.glue_ids("V")) == "\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"
    assert decode([chat.end_id]) == "<|im_end|>"
    assert chat.stop_ids == {chat.end_id}
    assert chat.deviations == ()
    assert chat.vocabulary_size == len(chat.tokenizer)


def test_no_system_message_gives_the_default_of_the_template(make_tokenizer: MakeTokenizer) -> None:
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))
    assert str(chat.tokenizer.decode(chat.prompt_ids("", "U"))).startswith("<|im_start|>system\nYou are helpful.<|im")


def test_end_of_sequence_besides_the_end_token_stops_too(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("bpe", "chatml")
    tokenizer.eos_token = "<|endoftext|>"
    chat = ChatFormat.from_tokenizer(tokenizer)
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == "<|im_end|>"
    assert chat.stop_ids == {chat.end_id, tokenizer.eos_token_id}


@pytest.mark.parametrize(("ends", "added"), [([2, 0], {2, 0}), (0, {0}), (None, set()), ([10**9], set())])
def test_every_end_of_the_generation_config_stops_too(
    ends: object, added: set[int], make_tokenizer: MakeTokenizer, tmp_path: Path
) -> None:
    """Qwen2.5-Instruct names <|im_end|> and <|endoftext|>."""
    make_tokenizer("bpe", "chatml").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert chat.stop_ids == {chat.end_id} | added


def test_a_template_that_takes_content_as_parts_alone(make_tokenizer: MakeTokenizer) -> None:
    parts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", parts))
    plain = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))
    assert chat.prompt_ids("S", "U") == plain.prompt_ids("S", "U")
    assert chat.glue_ids("V") == plain.glue_ids("V")
    talk = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert chat.conversation_ids(talk) == plain.prompt_ids("S", "U")


def test_system_message_is_folded_into_the_first_user_message(make_tokenizer: MakeTokenizer) -> None:
    gemma = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", gemma))
    text = "<|begin_of_text|><|im_start|>user\nS\n\nU<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(chat.prompt_ids(" S", "U\n")) == text
    assert "system message" in chat.deviations[0]
    talk = [{"role": "system", "content": "S"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "U"}]
    said = chat.tokenizer.decode(chat.conversation_ids(talk))
    assert said.count("<|im_start|>user\nS<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nU") == 1


def test_template_that_writes_no_end_token_is_ended_by_the_end_of_sequence(make_tokenizer: MakeTokenizer) -> None:
    bare = (
        "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:\n{% endif %}"
    )
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", bare))
    assert chat.stop_ids == {chat.tokenizer.eos_token_id}
    assert chat.tokenizer.decode(chat.glue_ids("U")) == "\nuser:\nU\nassistant:\n"
    assert any("<|endoftext|>" in note for note in chat.deviations)


def test_dropped_thinking_is_kept_on_wish_and_said(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("bpe", "qwen3")
    assert any("thinking" in note for note in ChatFormat.from_tokenizer(tokenizer).deviations)
    dropping = ChatFormat.from_tokenizer(tokenizer, keep_thinking=False)
    assert dropping.drops_thinking
    assert not any("thinking" in note for note in dropping.deviations)
    tokenizer = make_tokenizer("bpe", "chatml")  # whose template keeps it
    assert ChatFormat.from_tokenizer(tokenizer, keep_thinking=False) == ChatFormat.from_tokenizer(tokenizer)


def test_options_of_the_template_reach_it(make_tokenizer: MakeTokenizer) -> None:
    """Qwen3 with thinking turned off begins every reply with an empty block."""
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "qwen3"), template_options={"enable_thinking": False})
    assert str(chat.tokenizer.decode(chat.glue_ids("U"))).endswith("assistant\n<think>\n\n</think>\n\n")
    assert chat.decode_reply(encode(chat, "<answer>Up</answer>")) == "<answer>Up</answer>"


@given(text=known | anything)
def test_reply_is_the_text_without_its_stop_token(chat: ChatFormat, text: str) -> None:
    ids = encode(chat, text)
    assume(not set(ids) & set(chat.tokenizer.all_special_ids))
    assert chat.decode_reply(ids) == text
    assert chat.decode_reply([*ids, chat.end_id]) == text


def test_special_tokens_are_skipped_in_a_reply(make_tokenizer: MakeTokenizer) -> None:
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))
    assert chat.decode_reply(encode(chat, "U<|im_start|>p<|im_end|>")) == "Up"
    assert chat.decode_reply([]) == ""


OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_thinking_that_the_prompt_has_opened_belongs_to_the_reply(make_tokenizer: MakeTokenizer) -> None:
    """DeepSeek-R1 and its kind: the generation prompt ends in an open <think>."""
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", OPENS), reply_opening="<think>")  # which is not doubled
    assert str(chat.tokenizer.decode(chat.prompt_ids("S", "U"))).endswith("assistant\n<think>\n")
    reply = encode(chat, "I go.</think><answer>Up</answer><|im_end|>")
    assert chat.decode_reply(reply) == "<think>\nI go.</think><answer>Up</answer>"
    assert chat.reply_ids(chat.decode_reply(reply)) == reply, "the line that the prompt has ended is not ended twice"
    assert chat.decode_reply(chat.reply_ids("<think>Up.</think>")) == "<think>\nUp.</think>"


@pytest.mark.parametrize("opening", ["<think>", "<answer>"])
def test_an_opening_that_is_written_for_the_model(opening: str, make_tokenizer: MakeTokenizer) -> None:
    """It ends every prompt, unsampled, and belongs to the reply; the template's own text of the past is the same."""
    plain = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"), reply_opening=opening)
    decode = chat.tokenizer.decode
    assert decode(chat.prompt_ids("S", "U")) == f"{decode(plain.prompt_ids('S', 'U'))}{opening}"
    assert decode(chat.glue_ids("V")) == f"{decode(plain.glue_ids('V'))}{opening}"
    reply = f"{opening}up</think><answer>Up</answer>"
    assert chat.reply_ids(reply) == encode(chat, "up</think><answer>Up</answer><|im_end|>")
    assert chat.decode_reply(chat.reply_ids(reply)) == reply
    row = [*chat.prompt_ids("S", "U"), *chat.reply_ids(reply), *chat.glue_ids("V")]
    assert decode(row) == render(chat, ["S", "U", reply, "V"]) + opening
    assert chat.deviations == ()


@pytest.mark.parametrize("channel", [" analysis<|end_header_id|>hm<|eot_id|><|start_header_id|>assistant", ""])
def test_a_reply_begins_after_the_header_that_a_model_writes_itself(
    channel: str, make_tokenizer: MakeTokenizer
) -> None:
    """gpt-oss names a channel, and may think in another one first: what counts is the last message of the final one."""
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "gpt-oss"), keep_thinking=False)
    assert chat.header == " final<|end_header_id|>"
    reply = "<think>up</think><answer>Up</answer>"
    written = chat.reply_ids(reply)
    assert chat.tokenizer.decode(written) == f"{chat.header}{reply}<|endoftext|>"
    assert chat.decode_reply([*encode(chat, channel), *written]) == reply
    assert chat.decode_reply(encode(chat, " analysis<|end_header_id|>hm")) == " analysishm", "no message to read yet"
    assert chat.decode_reply([]) == ""
    for other in ("chatml", "qwen3", "glm4-moe", "nemotron3", "qwen3.5", "llama3", "plain"):
        assert ChatFormat.from_tokenizer(make_tokenizer("bpe", other), keep_thinking=False).header == ""


def test_cannot_be_used(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("bpe", "chatml")
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template; set"):
        ChatFormat.from_tokenizer(tokenizer)

    with pytest.raises(ValueError, match="'Qwen/Qwen3-4B' is not a tokenizer: give for example AutoTokenizer"):
        ChatFormat.from_tokenizer("Qwen/Qwen3-4B")  # type: ignore[arg-type]

    late = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }} over<|im_end|>{% endfor %}"
    late += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    with pytest.raises(ValueError, match="writes ' over' between a reply and the token"):
        ChatFormat.from_tokenizer(make_tokenizer("bpe", late))

    demand = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", demand + OPENS))
    assert chat.prompt_ids("S", "U")
    with pytest.raises(ValueError, match="demands a system message"):
        chat.prompt_ids("", "U")

    tokenizer = make_tokenizer("bpe", "chatml")
    tokenizer.add_special_tokens({"additional_special_tokens": ["√"]})
    with pytest.raises(ValueError, match="choose symbols"):
        ChatFormat.from_tokenizer(tokenizer).glue_ids("the box is on √")

    endless = make_tokenizer("bpe", "{% for m in messages %}{{ m.role }}\n{{ m.content }}\n{% endfor %}assistant\n")
    endless.eos_token = None
    with pytest.raises(ValueError, match=r"set tokenizer\.eos_token"):
        ChatFormat.from_tokenizer(endless)


def test_markup_that_is_not_marked_special_is_guarded_where_the_template_uses_it(
    make_tokenizer: MakeTokenizer,
) -> None:
    template = (
        "{% for m in messages %}[{{ m.role | upper }}]{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
    )
    tokenizer = make_tokenizer("bpe", template)
    tokenizer.add_tokens(["[USER]", "[ASSISTANT]", "[TABLE]"])
    chat = ChatFormat.from_tokenizer(tokenizer)
    glue = chat.glue_ids("[USER] [TABLE]")
    assert glue.count(encode(chat, "[USER]")[0]) == 1
    assert glue.count(encode(chat, "[TABLE]")[0]) == 1
    assert tokenizer.decode(glue) == "[USER][USER] [TABLE]<|endoftext|>[ASSISTANT]"


def test_cut_does_not_begin_a_text(make_tokenizer: MakeTokenizer) -> None:
    """Where a tokenizer puts a space before a text (SentencePiece), a message has none at its cut."""
    tokenizer = make_tokenizer("words", "chatml")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    space = len(tokenizer)
    tokenizer.backend_tokenizer.model = models.BPE({**added, "▁": space}, [], unk_token="<unk>")
    chat = ChatFormat.from_tokenizer(tokenizer)
    assert space in encode(chat, "x")
    assert space not in chat.glue_ids("<|im_end|>")
