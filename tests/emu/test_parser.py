"""The parser: scopes, labels, operands, variables, source lines, and errors that say where."""

from __future__ import annotations

import pytest

from mlagen.emu.interfaces import EmulatorError, Imm, Mem, Not, Pair, Reg, Sym, Vec
from mlagen.emu.operands import parse_operands
from mlagen.emu.parser import parse_module
from tests.emu.small_kernels import kernel, run

TEXT = """
// a comment { with braces }
.version 9.0
.target sm_90a, debug
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.global .align 4 .u32 table[3] = {1, 0x10, 7};
.const .align 8 .f64 half = 0d3FE0000000000000;
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
.visible .entry first(
  .param .align 64 .b8 first_param_0[192],
  .param .u64 .ptr .global .align 16 first_param_1,
  .param .u32 first_param_2
)
.maxntid 384, 1, 1
.reqnctapercluster 2, 1, 1
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 small[48];
  .local .align 8 .b8 __local_depot0[24];
  .loc 1 12 3
  mov.u32 %r1, %tid.x; /* two on
  a line */ add.s32 %r2, %r1, -4;
$L__BB0_1:
  .loc 2 7 9, function_name $L__info_string0, inlined_at 1 12 3
  { .reg .pred p; .reg .b32 t<2>;
    L: mbarrier.try_wait.parity.shared::cta.b64 p, [%r1+8], t1;
    @!p bra L; bra $L__BB0_1; }
  { .reg .pred p; L: setp.ne.b32 p, 1, 0; @p bra L; }
  @!%p1 bra.uni $L__BB0_1;
  { // callseq
    .param .b64 param0;
    .param .b32 retval0;
    st.param.b64 [param0], %rd1;
    call.uni (retval0), vprintf, (param0, param0);
    ld.param.b32 %r3, [retval0];
  }
  ret;
}
.file 1 "kernel.cu"
.file 2 "/include/a//b.cuh"
.section .debug_str { $L__info_string0: .b8 1 }
"""


def test_module_level() -> None:
    module = parse_module(TEXT)
    assert module.target == "sm_90a"
    assert module.files == {1: "kernel.cu", 2: "/include/a//b.cuh"}
    dynamic, table, half = module.variables
    assert (dynamic.external, dynamic.count, dynamic.align, dynamic.space) == (True, 0, 1024, "shared")
    assert table.initial == bytes([1, 0, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0])
    assert half.initial == bytes([0, 0, 0, 0, 0, 0, 0xE0, 0x3F])
    assert not module.functions["vprintf"].entry


def test_parameters_and_directives() -> None:
    function = parse_module(TEXT).entry("first")
    assert function.param_offsets() == {"first_param_0": 0, "first_param_1": 192, "first_param_2": 200}
    assert function.params_size == 204
    assert function.directives == {"maxntid": (384, 1, 1), "reqnctapercluster": (2, 1, 1)}
    assert [v.name for v in function.variables] == ["small", "__local_depot0", "param0", "retval0"]
    assert function.register_type("%rd3") == "b64"
    with pytest.raises(EmulatorError, match="not declared"):
        function.register_type("%q1")


def test_scopes_rename_registers_and_labels() -> None:
    function = parse_module(TEXT).entry()
    waits = [i for i in function.instructions if i.op == "mbarrier"]
    branches = [i for i in function.instructions if i.op == "bra"]
    assert [b.operands[0] for b in branches] == [Sym("L#1"), Sym("$L__BB0_1"), Sym("L#2"), Sym("$L__BB0_1")]
    assert waits[0].operands == (Reg("p#1"), Mem(Reg("%r1"), 8), Reg("t1#1"))
    assert branches[0].predicate == "p#1" and branches[0].predicate_negated
    assert function.labels["L#1"] == waits[0].pc == function.labels["$L__BB0_1"]


def test_lines_and_sources() -> None:
    function = parse_module(TEXT).entry()
    first, second = function.instructions[:2]
    lines = TEXT.split("\n")
    assert first.source == ("kernel.cu", 12) and "mov.u32 %r1" in lines[first.line - 1]
    assert "add.s32" in lines[second.line - 1]
    assert function.instructions[2].source == ("/include/a//b.cuh", 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r1, 5", (Reg("%r1"), Imm(5))),
        ("_, [%rd1+-8]", (Reg("_"), Mem(Reg("%rd1"), -8))),
        ("[sm+16], 0f3F800000", (Mem(Sym("sm"), 16), Imm(0x3F800000, "f32"))),
        ("%r1|%p1, -1", (Pair(Reg("%r1"), Reg("%p1")), Imm(-1))),
        ("{%r1, _}, !%p2", (Vec((Reg("%r1"), Reg("_"))), Not(Reg("%p2")))),
        ("[%rd1, {%r1, %r2}]", (Mem(Reg("%rd1"), 0, (Vec((Reg("%r1"), Reg("%r2"))),)),)),
        ("%tid.x, 0x1FU", (Reg("%tid.x"), Imm(31))),
        ("%r1, 1.5", (Reg("%r1"), Imm(1.5, "float"))),
        ("%rd1, table+4", (Reg("%rd1"), Sym("table", 4))),
        ("-2147483648", (Imm(-2147483648),)),
        ("[1024]", (Mem(Imm(1024)),)),
    ],
)
def test_operands(text: str, expected: tuple[object, ...]) -> None:
    assert parse_operands(text, {}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".visible .entry k() { mov.u32 %r1, ?; }", "line 1.*mov.u32"),
        (".visible .entry k() {\n .weird 5;\n}", "line 2.*unknown directive"),
        (".visible .entry k() {\n ret;\n", "ends inside"),
        (".visible .entry k() { .reg .b77 x; }", "unknown PTX type"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        parse_module(text)


def test_entries_are_found_by_name() -> None:
    module = parse_module(".visible .entry one() { ret; }\n.visible .entry two() { ret; }\n")
    assert module.entry("two").name == "two"
    assert module.entry("tw").name == "two"
    with pytest.raises(EmulatorError, match="one, two"):
        module.entry("three")
    with pytest.raises(EmulatorError, match="one, two"):
        module.entry()


def test_printing_is_no_deadlock() -> None:
    """One thread prints in a long loop while the others wait for it."""
    text = kernel("""
  mov.u32 %r1, %tid.x; mov.u32 %r2, 0; setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
LOOP:
  { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b64 p1; st.param.b64 [p1], %rd1; .param .b32 r0;
    call.uni (r0), vprintf, (p0, p1); }
  add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 2000;
  @%p2 bra LOOP;
DONE:
  bar.sync 0;""").replace(
        ".visible", ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n.visible"
    )
    run(text, [], block=64, schedule="lockstep")
