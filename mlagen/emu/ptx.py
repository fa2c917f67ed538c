"""A parsed PTX module."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlagen.emu.interfaces import EmulatorError, Instruction
from mlagen.emu.types import size_of


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable or parameter.

    space: param, shared, local, global or const. count: elements; 0 for `name[]`. initial: the bytes of an
    initialiser.
    """

    name: str
    space: str
    type: str
    count: int
    align: int
    external: bool = False
    initial: bytes = b""

    @property
    def size(self) -> int:
        """Bytes."""
        return size_of(self.type) * self.count


@dataclass(slots=True)
class Function:
    """An entry (or a declared device function, which has no instructions).

    registers: declared name or prefix -> type (`%r` for `.reg .b32 %r<9>`). labels: name -> index of the next
    instruction.
    directives: `.maxntid`, `.reqnctapercluster` ... as written.
    """

    name: str
    entry: bool
    params: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    line: int = 0

    def register_type(self, name: str) -> str:
        """The declared type of a register; EmulatorError when there is none."""
        found = self.registers.get(name) or self.ranges.get(name.rstrip("0123456789"))
        if found is None:
            raise EmulatorError(f"register {name} is not declared in {self.name}")
        return found

    def param_offsets(self) -> dict[str, int]:
        """Byte offset of each parameter in the parameter space."""
        offsets, position = {}, 0
        for param in self.params:
            position = -(-position // param.align) * param.align
            offsets[param.name] = position
            position += param.size
        return offsets

    @property
    def params_size(self) -> int:
        """Bytes of the parameter space."""
        if not self.params:
            return 0
        last = self.params[-1]
        return self.param_offsets()[last.name] + last.size


@dataclass(slots=True)
class Module:
    """A PTX text: its functions by name, its variables, the names of its source files."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    target: str = ""

    def entry(self, name: str | None = None) -> Function:
        """The entry of this name, or the only one; EmulatorError that lists the entries otherwise."""
        entries = [f for f in self.functions.values() if f.entry]
        if name is None and len(entries) == 1:
            return entries[0]
        found = [f for f in entries if f.name == name]
        if not found and name is not None:
            found = [f for f in entries if name in f.name]
        if len(found) != 1:
            raise EmulatorError(
                f"entry {name!r} not found; the module has {', '.join(f.name for f in entries) or 'none'}"
            )
        return found[0]
