"""Operands: text -> the classes of `interfaces`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlagen.emu.interfaces import EmulatorError, Imm, Mem, Not, Operand, Pair, Reg, Sym, Vec

_TOKEN = re.compile(
    r"\s*(?:(?P<f32>0[fF][0-9a-fA-F]{8})|(?P<f64>0[dD][0-9a-fA-F]{16})|(?P<hex>-?0[xX][0-9a-fA-F]+U?)"
    r"|(?P<float>-?\d+\.\d*(?:[eE][-+]?\d+)?)|(?P<int>-?\d+U?)"
    r"|(?P<name>[%$_A-Za-z][\w$#]*(?:\.[xyzw]\b)?(?:::\w+)?)|(?P<mark>[\[\]{}(),|+!<>-]))"
)
_CLOSE = {"{": "}", "[": "]", "(": ")"}


def _literal(kind: str, text: str) -> Imm:
    if kind in ("f32", "f64"):
        return Imm(int(text[2:], 16), "f32" if kind == "f32" else "f64")
    if kind == "float":
        return Imm(float(text), "float")
    return Imm(int(text.rstrip("U"), 16 if kind == "hex" else 10))


class _Parser:
    """Recursive descent over the tokens of one operand list."""

    def __init__(self, text: str, scope: Mapping[str, str]) -> None:
        self.scope = scope
        self.tokens: list[tuple[str, str]] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise EmulatorError(f"cannot read operand text {text[position : position + 40]!r}")
            self.tokens.append((found.lastgroup or "", found.group(found.lastgroup or 0)))
            position = found.end()
        self.next = 0

    def peek(self) -> str:
        """The next token's text, empty at the end."""
        return self.tokens[self.next][1] if self.next < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        """The next token."""
        if self.next >= len(self.tokens):
            raise EmulatorError("operand text ends early")
        self.next += 1
        return self.tokens[self.next - 1]

    def items(self, close: str) -> tuple[Operand, ...]:
        """Operands up to a closing mark (or the end)."""
        found: list[Operand] = []
        while self.peek() != close:
            found.append(self.operand())
            if self.peek() == ",":
                self.take()
        if close:
            self.take()
        return tuple(found)

    def operand(self) -> Operand:
        """One operand with its `|`, `+ offset` and texture-style suffixes."""
        left = self.atom()
        while True:
            mark = self.peek()
            if mark == "|":
                self.take()
                left = Pair(left, self.atom())
            elif mark == "+":
                self.take()
                left = _plus(left, self.atom())
            elif mark[:1] == "-" and mark[1:2].isdigit():
                left = _plus(left, _literal(*self.take()))
            else:
                return left

    def atom(self) -> Operand:
        """One operand without suffixes."""
        kind, text = self.take()
        if kind == "mark":
            if text in "{(":
                return Vec(self.items(_CLOSE[text]))
            if text == "[":
                return _memory(self.items("]"))
            if text == "!":
                return Not(self.atom())
            if text == "-":
                value = self.atom()
                if isinstance(value, Imm):
                    return Imm(-value.value, value.kind)
            raise EmulatorError(f"unexpected {text!r} in an operand")
        if kind != "name":
            return _literal(kind, text)
        if text in self.scope:
            return Reg(self.scope[text])
        return Reg(text) if text[0] == "%" or text == "_" else Sym(text)


def _plus(left: Operand, right: Operand) -> Operand:
    """`a + 8`, outside of brackets or inside."""
    if isinstance(right, Imm) and isinstance(right.value, int):
        if isinstance(left, Sym):
            return Sym(left.name, left.offset + right.value)
        if isinstance(left, Imm) and isinstance(left.value, int):
            return Imm(left.value + right.value)
        return Mem(left, right.value)
    raise EmulatorError("an operand offset is not an integer")


def _memory(items: tuple[Operand, ...]) -> Mem:
    first, rest = items[0], items[1:]
    if isinstance(first, Mem):
        return Mem(first.base, first.offset, rest)
    if isinstance(first, Sym):
        return Mem(Sym(first.name), first.offset, rest)
    return Mem(first, 0, rest)


_SIMPLE: dict[str, Operand] = {}


def parse_operands(text: str, scope: Mapping[str, str]) -> tuple[Operand, ...]:
    """All operands of an instruction. scope: register names that inline-asm blocks renamed."""
    if scope:
        return _Parser(text, scope).items("")
    if not any(mark in text for mark in "{[("):
        return tuple(_simple(part) for part in text.split(",")) if text.strip() else ()
    return _Parser(text, scope).items("")


def _simple(text: str) -> Operand:
    found = _SIMPLE.get(text)
    if found is None:
        if len(_SIMPLE) > 100_000:
            _SIMPLE.clear()
        (found,) = _Parser(text, {}).items("")
        _SIMPLE[text] = found
    return found
