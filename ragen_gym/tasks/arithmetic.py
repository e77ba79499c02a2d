"""Arithmetic of whole numbers as text: what the tasks compute, exactly and without ``eval``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

__all__ = ["OPERATORS", "answer_of", "evaluate"]

#: The signs of an expression and what they do.
OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_LONGEST = 200  # characters of an expression: its tree is then no deeper than Python's stack, its numbers no larger
_ANSWER = re.compile(r"<answer>(.*)</answer>\s*\Z", re.DOTALL)


def answer_of(reply: str) -> str | None:
    """What stands in the answer tags that the reply ends with, as it stands; None without them, or with several."""
    if not reply.count("<answer>") == reply.count("</answer>") == 1:
        return None  # before the search, which would take quadratic time on many tags
    match = _ANSWER.search(reply)
    return match[1] if match else None


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers, + - * / and brackets, and its numbers in order.

    Raises:
        ValueError: anything else, a division by 0, or more than 200 characters.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"the expression has {len(text)} characters; at most {_LONGEST} are read")
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            return OPERATORS[_SIGNS[type(node.op)]](value(node.left), value(node.right))
        raise ValueError("only whole numbers, + - * / and brackets are read")

    try:
        return value(ast.parse(text.strip(), mode="eval").body), numbers
    except ZeroDivisionError:
        raise ValueError("it divides by 0") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("only whole numbers, + - * / and brackets are read") from None
