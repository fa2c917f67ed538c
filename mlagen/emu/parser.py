"""PTX text -> `ptx.Module`.

Reads what compilers write and what people put into inline asm: nested `{ }` scopes with local registers and
labels, `.loc` with
`inlined_at`, parameters with alignment, variables with initialisers. PTX ISA sections 4 (syntax) and 5 (state
spaces, types, variables).
"""

from __future__ import annotations

import dataclasses
import re
import struct

from mlagen.emu.interfaces import EmulatorError, Instruction, Sym
from mlagen.emu.operands import parse_operands
from mlagen.emu.ptx import Function, Module, Variable
from mlagen.emu.types import size_of

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', re.S)
_SPACE = re.compile(r"\s*")
_HEAD = re.compile(r"((?:\.(?:visible|weak|extern|common)\s+)*)\.(entry|func)\b")
_SIGNATURE = re.compile(
    r"(?:\((?P<returns>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*(?:\((?P<params>.*?)\))?(?P<rest>[^()]*)$", re.S
)
_LABEL = re.compile(r"([$A-Za-z_][\w$]*)\s*:(?!:)")
_PREDICATE = re.compile(r"@\s*(!?)\s*([%\w$]+)\s+")
_OPCODE = re.compile(r"([a-z_]\w*(?:(?:\.|::)\w+)*)\s*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+")
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:\\.|[^"\\])*)"')
_REG = re.compile(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", re.S)
_RANGE = re.compile(r"([%\w$]+)<(\d+)>$")
_VARIABLE = re.compile(
    r"(?P<ext>(?:\.(?:visible|weak|extern|common)\s+)*)\.(?P<space>param|shared|local|global|const)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?(?:\.v(?P<vector>\d)\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr(?:\s+\.\w+(?:\s+\d+)?)*\s+)?(?P<name>[\w$]+)(?P<dims>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.S,
)


def parse_module(text: str) -> Module:
    """Parse a PTX text. EmulatorError names the line that cannot be read."""
    return _ModuleParser(text).parse()


class _Scope:
    """A `{ }` block: names of its registers and labels after renaming."""

    def __init__(self, parent: _Scope | None, number: int) -> None:
        self.parent = parent
        self.number = number
        self.names: dict[str, str] = dict(parent.names) if parent else {}
        self.labels: dict[str, str] = {}

    def label(self, name: str) -> str:
        """The renamed label, looked up from here outwards."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return name


class _ModuleParser:
    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_blank, text)
        self.module = Module()

    def line_at(self, position: int) -> int:
        """1-based line of a position."""
        return self.text.count("\n", 0, position) + 1

    def parse(self) -> Module:
        """The whole module."""
        text = self.text
        for number, name in _FILE.findall(text):
            self.module.files[int(number)] = name
        position = 0
        while True:
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
            if position >= len(text):
                break
            head = _HEAD.match(text, position)
            position = self.function(head) if head else self.directive(position)
        _set_sources(self.module)
        return self.module

    def directive(self, position: int) -> int:
        """A directive or a variable outside of functions; gives the position after it."""
        text = self.text
        found = re.compile(r"\.(version|target|address_size|file|pragma)\b").match(text, position)
        if found:
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            if found.group(1) == "target":
                self.module.target = text[found.end() : end].split(",")[0].strip()
            return end
        if text.startswith(".section", position):
            return _closing_brace(text, text.index("{", position))
        end = text.find(";", position)
        if end < 0:
            raise EmulatorError(
                f"line {self.line_at(position)}: unreadable text {text[position : position + 60]!r}"
            )
        variable = _variable(text[position:end].strip())
        if variable is not None:
            self.module.variables.append(variable)
        return end + 1

    def function(self, head: re.Match[str]) -> int:
        """A function or its declaration; gives the position after it."""
        text, end = self.text, head.end()
        depth = 0
        while depth or text[end] not in "{;":
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        signature = _SIGNATURE.match(" ".join(text[head.end() : end].split()))
        if signature is None:
            raise EmulatorError(f"line {self.line_at(head.start())}: unreadable function header")
        function = Function(signature["name"], head.group(2) == "entry", line=self.line_at(head.start()))
        for part in (signature["params"] or "").split(","):
            if part.strip():
                param = _variable(part.strip())
                if param is None:
                    raise EmulatorError(f"line {function.line}: unreadable parameter {part.strip()!r}")
                function.params.append(param)
        for name, values in re.findall(r"\.(\w+)\s*([\d,\s]*)", signature["rest"] or ""):
            function.directives[name] = tuple(int(v) for v in values.replace(" ", "").split(",") if v)
        if text[end] == ";":
            self.module.functions.setdefault(function.name, function)
            return end + 1
        self.module.functions[function.name] = function
        return _BodyParser(text, end, function, self.line_at(end)).parse()


class _BodyParser:
    """The statements between the braces of a function."""

    def __init__(self, text: str, position: int, function: Function, line: int) -> None:
        self.text = text
        self.position = position + 1
        self.function = function
        self.line = line
        self.counted = position
        self.scope: _Scope | None = _Scope(None, 0)
        self.scopes = 0
        self.location: tuple[str, int] | None = None
        self.branches: list[tuple[int, _Scope]] = []

    def parse(self) -> int:
        """Reads to the closing brace; gives the position after it."""
        text = self.text
        while self.scope is not None:
            self.position = _SPACE.match(text, self.position).end()  # type: ignore[union-attr]
            self.line += text.count("\n", self.counted, self.position)
            self.counted = self.position
            mark = text[self.position : self.position + 1]
            if mark == "{":
                self.scopes += 1
                self.scope = _Scope(self.scope, self.scopes)
                self.position += 1
            elif mark == "}":
                self.scope = self.scope.parent
                self.position += 1
            elif mark == ";":
                self.position += 1
            elif mark == "":
                raise EmulatorError(f"{self.function.name}: the text ends inside the function")
            else:
                self.statement(self.scope)
        self.resolve_branches()
        return self.position

    def statement(self, scope: _Scope) -> None:
        """One label, directive or instruction."""
        text = self.text
        label = _LABEL.match(text, self.position)
        if label:
            self.position = label.end()
            name = label.group(1)
            if scope.parent is not None:
                scope.labels[name] = name = f"{name}#{scope.number}"
            self.function.labels[name] = len(self.function.instructions)
            return
        if text[self.position] == ".":
            loc = _LOC.match(text, self.position)
            if loc:
                self.location = (loc.group(1), int(loc.group(2)))
                self.position = text.index("\n", self.position)
                return
            end = text.index(";", self.position)
            self.declaration(text[self.position : end].strip(), scope)
        else:
            end = text.index(";", self.position)
            self.instruction(text[self.position : end], scope)
        self.position = end + 1

    def declaration(self, text: str, scope: _Scope) -> None:
        """`.reg`, a variable, `.branchtargets`, `.pragma`."""
        registers = _REG.match(text)
        if registers:
            for name in registers.group(2).split(","):
                self.register(name.strip(), registers.group(1), scope)
            return
        if text.startswith(".branchtargets"):
            names = tuple(part.strip() for part in text[len(".branchtargets") :].split(","))
            label = next(
                k for k, v in reversed(self.function.labels.items()) if v == len(self.function.instructions)
            )
            self.function.tables[label] = names
            return
        variable = _variable(text)
        if variable is not None:
            self.function.variables.append(variable)
        elif not text.startswith((".pragma", ".callprototype", ".noreturn", ".maxnreg")):
            raise EmulatorError(f"line {self.line}: unknown directive {text[:60]!r}")

    def register(self, name: str, ptx_type: str, scope: _Scope) -> None:
        """One name of a `.reg` directive."""
        size_of(ptx_type)
        many = _RANGE.match(name)
        if many and scope.parent is None:
            self.function.ranges[many.group(1)] = ptx_type
            return
        names = [f"{many.group(1)}{i}" for i in range(int(many.group(2)))] if many else [name]
        for each in names:
            renamed = each if scope.parent is None else f"{each}#{scope.number}"
            scope.names[each] = renamed
            self.function.registers[renamed] = ptx_type

    def instruction(self, text: str, scope: _Scope) -> None:
        """One instruction with its predicate."""
        predicate, negated, start = None, False, 0
        guard = _PREDICATE.match(text)
        if guard:
            negated = guard.group(1) == "!"
            predicate = scope.names.get(guard.group(2), guard.group(2))
            start = guard.end()
        opcode = _OPCODE.match(text, start)
        if opcode is None:
            raise EmulatorError(f"line {self.line}: unreadable instruction {text[:60]!r}")
        name = opcode.group(1)
        try:
            operands = parse_operands(text[opcode.end() :], scope.names)
        except EmulatorError as error:
            raise EmulatorError(f"line {self.line}: {name}: {error}") from None
        pc = len(self.function.instructions)
        if name.startswith("bra") and scope.parent is not None:
            self.branches.append((pc, scope))
        self.function.instructions.append(
            Instruction(
                name, tuple(name.split(".")[1:]), operands, pc, self.line, self.location, predicate, negated
            )
        )

    def resolve_branches(self) -> None:
        """Labels that a branch inside of a scope names may be local to the scope."""
        for pc, scope in self.branches:
            ins = self.function.instructions[pc]
            operands = tuple(Sym(scope.label(o.name)) if isinstance(o, Sym) else o for o in ins.operands)
            self.function.instructions[pc] = dataclasses.replace(ins, operands=operands)


def _blank(found: re.Match[str]) -> str:
    text = found.group(0)
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def _closing_brace(text: str, position: int) -> int:
    depth = 0
    while True:
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            return position


def _set_sources(module: Module) -> None:
    """Replace file numbers by names (`.file` lines come last in the text)."""
    known: dict[tuple[str, int], tuple[str, int]] = {}
    for function in module.functions.values():
        for pc, ins in enumerate(function.instructions):
            if ins.source is not None:
                named = known.get(ins.source)
                if named is None:
                    number, line = ins.source
                    named = known[ins.source] = (module.files.get(int(number), number), line)
                object.__setattr__(function.instructions[pc], "source", named)


def _variable(text: str) -> Variable | None:
    """A variable or parameter declaration, or None when the text is something else."""
    found = _VARIABLE.match(text)
    if found is None:
        return None
    count = int(found["vector"] or 1)
    dims = re.findall(r"\[\s*(\d*)\s*\]", found["dims"])
    for dim in dims:
        count *= int(dim) if dim else 0
    initial = _initial(found["init"], found["type"]) if found["init"] else b""
    if dims == [""] and initial:
        count = len(initial) // size_of(found["type"])
    align = int(found["align"] or size_of(found["type"]))
    return Variable(
        found["name"], found["space"], found["type"], count, align, ".extern" in found["ext"], initial
    )


def _initial(text: str, ptx_type: str) -> bytes:
    """Bytes of an initialiser of numbers; names of other variables become zeros."""
    size = size_of(ptx_type)
    out = b""
    for part in re.sub(r"[{}]", " ", text).split(","):
        part = part.strip()
        if re.match(r"0[fFdD][0-9a-fA-F]{8,16}$", part):
            value = int(part[2:], 16)
        elif re.match(r"-?\d+\.\d*", part):
            value = int.from_bytes(struct.pack("<f" if size == 4 else "<d", float(part)), "little")
        else:
            value = int(part.rstrip("U"), 0) if re.match(r"-?(0[xX])?[0-9a-fA-F]+U?$", part) else 0
        out += (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return out
