"""The tree computes what padded rows compute: log-probs, entropies and gradients, of every kind of row and model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from ragen_agent.config import Lora
from ragen_agent.models.parameters import adapt
from ragen_agent.update import prefix_tree, scoring
from ragen_agent.update.batches import Batch
from ragen_agent.update.prefix_tree import PrefixTree, shares_prefixes
from ragen_agent.update.scoring import Scores, sampled_scores

VOCABULARY = 40


def llama() -> PreTrainedModel:
    """Grouped queries and rotary positions."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def gpt2() -> PreTrainedModel:
    """Learned positions."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    )


def lora() -> PreTrainedModel:
    """Frozen weights and an adapter that is no longer zero."""
    model = llama()
    adapt(model, Lora(rank=4), 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    return model


def rows(members: int = 4, turns: int = 3, levels: int = 3) -> list[list[tuple[int, bool]]]:
    """Groups with a common prompt; (id, whether it was sampled). Members often write the same, and may end early."""
    generator = torch.Generator().manual_seed(1)

    def draw(high: int, count: int) -> list[int]:
        return torch.randint(1, high, (count,), generator=generator).tolist()

    system, found = draw(VOCABULARY, 6), []
    for _ in range(levels):
        prompt = [(one, False) for one in system + draw(VOCABULARY, 4)]
        for _ in range(members):
            row = list(prompt)
            for _ in range(1 + draw(turns + 1, 1)[0] % turns):
                row += [(one, True) for one in draw(3, 1 + draw(4, 1)[0])]
                row += [(one, False) for one in draw(3, 2)]
            found.append(row)
    return [*found, found[0]]  # one row twice


def batch_of(found: list[list[tuple[int, bool]]], contexts: tuple[tuple[int, ...], ...] = ()) -> Batch:
    shape = (len(found), max(map(len, found)))
    ids, sampled = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    attention = torch.zeros(shape, dtype=torch.long)
    for index, row in enumerate(found):
        ids[index, : len(row)] = torch.tensor([one for one, _ in row])
        sampled[index, : len(row)] = torch.tensor([own for _, own in row])
        attention[index, : len(row)] = 1
    return Batch(ids, sampled, attention, torch.zeros(shape), contexts)


def scored(model: PreTrainedModel, batch: Batch) -> tuple[Scores, list[torch.Tensor]]:
    """Scores, and gradients of a loss that weighs every token's log-prob and entropy differently."""
    weights = torch.randn((2, *batch.ids.shape), generator=torch.Generator().manual_seed(2))
    bias = torch.zeros(VOCABULARY)
    bias[0] = -1e9  # suppressed
    model.zero_grad()
    scores = sampled_scores(model, batch, bias, 0.7)
    (weights[0] * scores.log_probs + weights[1] * scores.entropy).sum().backward()
    return scores, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("block_cost", [1, 4096])
@pytest.mark.parametrize("tokens_per_pass", [25, 8192])
@pytest.mark.parametrize("made", [llama, gpt2, lora])
def test_the_tree_is_the_padded_computation(
    made: Callable[[], PreTrainedModel], tokens_per_pass: int, block_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, batch = made().eval(), batch_of(rows())
    assert shares_prefixes(model)
    monkeypatch.setattr(prefix_tree, "BLOCK_COST", block_cost)
    monkeypatch.setattr(scoring, "TOKENS_PER_PASS", tokens_per_pass)
    tree, gradients = scored(model, batch)
    monkeypatch.setattr(scoring, "shares_prefixes", lambda model: False)
    padded, expected = scored(model, batch)
    assert len(gradients) == len(expected) > 4
    torch.testing.assert_close(tree.log_probs, padded.log_probs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(tree.entropy, padded.entropy, atol=2e-5, rtol=1e-4)
    assert torch.equal(tree.likeliest, padded.likeliest)
    torch.testing.assert_close(gradients, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("shared", [True, False])
def test_a_large_vocabulary_bounds_a_pass(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of 4,096 tokens and 152 thousand words would take 5 GiB with their gradient."""
    assert scoring.tokens_per_pass(151_936) == 1766
    assert scoring.tokens_per_pass(49_152) == scoring.tokens_per_pass(1000) == 4096
    torch.manual_seed(0)
    model, batch = llama().eval(), batch_of(rows())
    monkeypatch.setattr(scoring, "shares_prefixes", lambda model: shared)
    whole, expected = scored(model, batch)
    made: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda module, given, logits: made.append(logits.numel()))
    monkeypatch.setattr(scoring, "LOGITS_PER_PASS", 25 * VOCABULARY)
    found, gradients = scored(model, batch)
    assert max(made) <= 25 * VOCABULARY < sum(made) / 2, "computed again for the gradient"
    torch.testing.assert_close(found.log_probs, whole.log_probs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(gradients, expected, atol=2e-4, rtol=1e-3)
    planned = scoring.passes(model, batch)
    assert sorted(row for part in planned for row in part.tolist()) == list(range(len(batch.ids)))
    made.clear()
    for part in planned:
        sampled_scores(model, batch.rows(part), torch.zeros(VOCABULARY))
    assert len(made) == len(planned), "a pass that was planned is not cut again"


def test_scores_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    model, batch = llama().eval(), batch_of(rows())
    found, gradients = scored(model, batch)
    weights = torch.randn((2, *batch.ids.shape), generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    logits = model(batch.ids, attention_mask=batch.attention).logits[:, :-1] / 0.7
    logits = logits.masked_fill(torch.arange(VOCABULARY) == 0, -1e9)
    distribution = torch.distributions.Categorical(logits=logits)
    own = batch.sampled[:, 1:]
    log_probs, entropy = distribution.log_prob(batch.ids[:, 1:]), distribution.entropy()
    torch.testing.assert_close(found.log_probs[:, 1:], torch.where(own, log_probs, 0), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found.entropy[:, 1:], torch.where(own, entropy, 0), atol=2e-5, rtol=1e-4)
    assert torch.equal(found.likeliest[:, 1:], own & (logits.argmax(-1) == batch.ids[:, 1:]))
    ((weights[0, :, 1:] * log_probs + weights[1, :, 1:] * entropy) * own).sum().backward()
    torch.testing.assert_close(gradients, [weight.grad for weight in model.parameters()], atol=2e-4, rtol=1e-3)


def test_a_logit_of_minus_infinity_is_a_probability_of_zero() -> None:
    """As of tokens that a model masks by itself: entropy and gradients are those of the others."""
    torch.manual_seed(0)
    model, batch, found = llama().eval(), batch_of(rows()), []
    for masked in (-1e9, -math.inf):
        first = torch.arange(VOCABULARY) == 0
        hook = model.lm_head.register_forward_hook(lambda *given, x=masked, at=first: given[2].masked_fill(at, x))
        found.append(scored(model, batch))
        hook.remove()
    torch.testing.assert_close(found[0], found[1])
    assert bool(found[1][0].entropy.isfinite().all())


def test_contexts_that_begin_anew_share_prefixes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, found = llama().eval(), rows()
    anew = [[place for place, (_, own) in enumerate(row) if not own and place > 11] for row in found]
    batch = batch_of(found, tuple((0, places[0]) for places in anew))
    assert len(batch.split_contexts().ids) > len(found)
    tree, gradients = scored(model, batch)
    monkeypatch.setattr(scoring, "shares_prefixes", lambda model: False)
    padded, expected = scored(model, batch)
    torch.testing.assert_close(tree.log_probs, padded.log_probs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(gradients, expected, atol=2e-4, rtol=1e-3)


def test_what_is_counted_and_planned_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read in two contexts: tokens and passes are counted in the distinct prefixes of these."""
    found = [[(n, n > 2) for n in (1, 2, 3, 4)] + [(1, False), (2, False), (5 + row, True)] for row in range(4)]
    batch = batch_of(found, ((0, 4),) * 4)
    assert batch.tokens == 4 + 4, "1 2 3 4 once, and each row's own token after 1 2"
    assert batch_of(found).tokens == 6 + 4
    read = batch.split_contexts()
    assert batch.tokens == len(PrefixTree.of(read.ids, read.attention).ids) == read.tokens
    for limit, expected in ((8, [4]), (7, [2, 2]), (6, [2, 2]), (5, [1] * 4)):
        monkeypatch.setattr(scoring, "TOKENS_PER_PASS", limit)
        planned = scoring.passes(llama(), batch)
        assert [len(rows) for rows in planned] == expected
        assert sorted(row for rows in planned for row in rows.tolist()) == [0, 1, 2, 3]


def test_models_that_cannot_run_over_a_tree_are_padded() -> None:
    window = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    assert window.sliding_window
    assert not shares_prefixes(MistralForCausalLM(window))
    with_dropout = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4))
    assert shares_prefixes(with_dropout.eval())
    assert not shares_prefixes(with_dropout.train())
    assert not shares_prefixes(nn.Linear(2, 2))
