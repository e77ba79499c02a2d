"""Exact arithmetic on text expressions of whole numbers, without ``eval``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

#: The signs of an expression and their functions.
OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_LONGEST = 200  # characters of an expression, which bounds the depth of its tree and the size of its numbers
_ANSWER = re.compile(r"<answer>(.*)</answer>\s*\Z", re.DOTALL)


def answer_of(reply: str) -> str | None:
    """The raw content of the answer tags at the end of the reply; None without them, or with several."""
    if not reply.count("<answer>") == reply.count("</answer>") == 1:
        return None  # before the search, which is quadratic in the number of tags
    match = _ANSWER.search(reply)
    return match[1] if match else None


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers, + - * / and brackets, and its numbers in order.

    Raises:
        ValueError: another expression, a division by 0, or more than 200 characters.
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
