"""Comparison of a library's functions with the published formulas."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ragen_agent.conform.batches import Batch, equal_batches
from ragen_agent.conform.formulas import RULES, Rule
from ragen_agent.conform.libraries import Function, Library

TOLERANCE = 1e-5
"""Relative error up to which two results are one: some libraries compute in float32."""


@dataclass(frozen=True)
class Finding:
    """One rule of a library beside its published formula."""

    library: str
    version: str
    rule: str
    function: str
    """Dotted name of the library's function."""
    verdict: str
    """same, differs (and ``differences`` give the formula that it computes) or unexplained."""
    differences: list[str]
    errors: dict[str, float]
    """Of each batch: the norm of the error over the norm of the formula's result."""
    refused: list[str]
    """Batches that the library refuses before it trains."""
    equal: dict[str, float]
    """The size of the advantages where all rollouts of a group return the same, by this return; 0 by the formulas."""

    def as_dict(self) -> dict[str, Any]:
        """A row of JSON."""
        return asdict(self)


def findings(library: Library) -> list[Finding]:
    """Every rule that the library has, compared with its published formula."""
    return [compare(library, rule, function) for rule, function in library.functions.items()]


def compare(library: Library, name: str, function: Function) -> Finding:
    """A function of a library compared with the formula of a key of ``RULES``, and with its variants.

    The variant named is the one with the fewest differences that agrees on every batch.

    Raises:
        ValueError: an unknown rule, a function that raises an error, or a result of another shape than the batch.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; it must be one of {', '.join(map(repr, RULES))}")
    rule = RULES[name]
    batches = {key: batch for key, batch in rule.batches().items() if key not in function.refused}
    found = {key: _called(function, name, key, batch) for key, batch in batches.items()}
    best: list[str] | None = None
    published: dict[str, float] = {}  # the errors of the first variant, which changes nothing
    for changed, words in variants(rule):
        formula = partial(rule.formula, **changed)
        wanted = {key: _result(rule, formula, batch) for key, batch in batches.items()}
        errors = {key: _error(found[key], wanted[key]) for key in batches}
        published = published or errors
        if max(errors.values()) <= TOLERANCE:
            best = words
            break
    verdict = "unexplained" if best is None else "differs" if best else "same"
    equal = {}
    if rule.kind == "advantages" and "alone" in rule.variants:
        alike = equal_batches().items()
        equal = {key: float(_called(function, name, f"returns of {key}", batch).abs().max()) for key, batch in alike}
    left = list(function.refused)
    return Finding(library.name, library.version, name, function.name, verdict, best or [], published, left, equal)


def variants(rule: Rule) -> list[tuple[dict[str, Any], list[str]]]:
    """Keywords of the formula's variants and their words, the fewest changes first."""
    rows = []
    for values in product(*rule.variants.values()):
        changed = {key: value for key, value in zip(rule.variants, values, strict=True) if rule.variants[key][value]}
        rows.append((changed, [rule.variants[key][value] for key, value in changed.items()]))
    return sorted(rows, key=lambda row: len(row[0]))


def _called(function: Function, name: str, key: str, batch: Batch) -> Tensor:
    """The result of a library's function; an error says where it was raised, and what the function was given."""
    try:
        return _result(RULES[name], function.call, batch)
    except Exception as error:  # whatever the function raises
        place = traceback.extract_tb(error.__traceback__)[-1]
        shapes = ", ".join(f"{part} {tuple(tensor.shape)}" for part, tensor in vars(batch).items())
        raise ValueError(
            f"{function.name}, given as {name!r}, fails on the batch {key!r}: {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno}). It was called with a Batch of {shapes}."
        ) from error


def _result(rule: Rule, call: Any, batch: Batch) -> Tensor:
    """The advantages at sampled tokens, or the gradient of the loss with respect to the log-probs; float64."""
    if rule.kind == "loss":
        batch = replace(batch, log_probs=batch.log_probs.clone().requires_grad_())
        (found,) = torch.autograd.grad(call(batch), batch.log_probs)
    else:
        found = call(batch)
    shape = getattr(found, "shape", None)
    if shape != batch.mask.shape:
        raise ValueError(f"the result has shape {shape and tuple(shape)}; it must be {tuple(batch.mask.shape)}")
    return torch.where(batch.mask, found.detach().double(), 0.0)


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm()) if bool(found.isfinite().all()) else float("inf")
