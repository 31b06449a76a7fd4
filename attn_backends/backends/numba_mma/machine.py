"""`Machine`: the instructions that the stages are written in, each one line of PTX.

Every method speaks of one warp, 32 threads in step. The tests have a second machine with the same methods, whose values are
arrays of 32 numbers, so that the stages run without a GPU. PTX: https://docs.nvidia.com/cuda/parallel-thread-execution
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from attn_backends.backends.numba_mma.value import F32, I32, I64, Number, Value

SHORT = {"float16": "f16", "bfloat16": "bf16"}
SHARED = 3  # address space
ALIGNMENT = 1024
LETTER = {F32: "f", I32: "r", I64: "l"}  # of a register in a constraint
_EVERYONE = "0xffffffff"


class Machine:
    """Writes PTX into the function that numba is building."""

    def __init__(self, builder: Any, half: str) -> None:
        self.builder, self.half = builder, SHORT[half]

    # --- who am I -------------------------------------------------------------------------------------------------

    @property
    def thread(self) -> Value:
        """Number of the thread in its block."""
        return self._pure("mov.u32 $0, %tid.x;", I32)

    @property
    def lane(self) -> Value:
        """Number of the thread in its warp."""
        return self.thread & 31

    @property
    def warp(self) -> Value:
        """Number of the warp in its block."""
        return self.thread >> 5

    # --- numbers --------------------------------------------------------------------------------------------------

    def real(self, number: float) -> Value:
        """A float32."""
        return Value(self.builder, ir.Constant(F32, number))

    def integer(self, number: int) -> Value:
        """An int32."""
        return Value(self.builder, ir.Constant(I32, number))

    def narrow(self, number: Value) -> Value:
        """An int64 as an int32."""
        return Value(self.builder, self.builder.trunc(number.ir, I32))

    def wide(self, number: Value) -> Value:
        """An int32 as an int64."""
        return Value(self.builder, self.builder.sext(number.ir, I64))

    def select(self, condition: Value, one: Value | Number, other: Value) -> Value:
        """`one` where the condition holds."""
        return Value(self.builder, self.builder.select(condition.ir, other.like(one), other.ir))

    def product(self, one: Value, other: Value) -> Value:
        """Rounded, and never made part of a fused multiply and add."""
        return self._pure("mul.rn.f32 $0, $1, $2;", F32, one, other)

    def maximum(self, one: Value, other: Value) -> Value:
        """The larger one."""
        return self._pure("max.f32 $0, $1, $2;", F32, one, other)

    def magnitude(self, number: Value) -> Value:
        """Without its sign."""
        return self._pure("abs.f32 $0, $1;", F32, number)

    def signed(self, number: Value, sign: Value) -> Value:
        """The number with the sign of another."""
        return self._pure("copysign.f32 $0, $2, $1;", F32, number, sign)

    def exp2(self, number: Value) -> Value:
        """Two to the power; relative error 2e-7."""
        return self._pure("ex2.approx.ftz.f32 $0, $1;", F32, number)

    def log2(self, number: Value) -> Value:
        """Its logarithm to base two."""
        return self._pure("lg2.approx.f32 $0, $1;", F32, number)

    def reciprocal(self, number: Value) -> Value:
        """One over it."""
        return self._pure("rcp.approx.f32 $0, $1;", F32, number)

    def pack(self, low: Value, high: Value) -> Value:
        """Two float32 rounded to 16 bits, in one register."""
        return self._pure(f"cvt.rn.{self.half}x2.f32 $0, $2, $1;", I32, low, high)

    # --- the warp together ------------------------------------------------------------------------------------------

    def from_lane(self, number: Value, distance: int) -> Value:
        """The float32 that thread `lane ^ distance` has."""
        return self._acting(f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, {_EVERYONE};", F32, number)

    def anywhere(self, condition: Value) -> Value:
        """1 where the condition holds in any thread, else 0."""
        text = (
            f"{{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.any.pred q, p, {_EVERYONE}; selp.b32 $0, 1, 0, q; }}"
        )
        return self._acting(text, I32, self._flag(condition))

    def sync_warp(self) -> None:
        """What the warp has written to shared memory is seen by all of it."""
        self._acting(f"bar.warp.sync {_EVERYONE};", None)

    def mma(self, sums: Sequence[Value], a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        """sums [16, 8] + a [16, 16] b [16, 8]; a in four registers, b in two, sums in four."""
        text = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{self.half}.{self.half}.f32"
            " {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        return self._several(text, [F32] * 4, *a, *b, *sums, acts=False)

    # --- shared memory ----------------------------------------------------------------------------------------------

    def shared(self) -> Value:
        """Address of the block's shared memory, whose size the launch says."""
        module, name = self.builder.module, "tiles_of_a_block"
        if name not in module.globals:
            tiles = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), 0), name, SHARED)
            tiles.linkage, tiles.align = "external", ALIGNMENT
        return Value(self.builder, self.builder.ptrtoint(module.globals[name], I64))

    def ldmatrix(self, address: Value, *, transposed: bool = False) -> list[Value]:
        """Four matrices of 8 x 8 numbers; thread l gives the address of row l % 8 of matrix l // 8.

        Of each matrix, thread l gets numbers 2 (l % 4) and the next of row l // 4; of column l // 4 where transposed.
        """
        kind = ".trans" if transposed else ""
        text = f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
        return self._several(text, [I32] * 4, address)

    def store_shared(self, address: Value, number: Value) -> None:
        """Four bytes."""
        self._acting("st.shared.b32 [$0], $1;", None, address, number)

    def load_shared(self, address: Value) -> list[Value]:
        """Sixteen bytes."""
        return self._several("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", [I32] * 4, address)

    def copy_async(self, shared: Value, address: Value, size: Value) -> None:
        """Sixteen bytes from global memory, of which only the first `size` are read; the others are 0."""
        self._acting("cp.async.cg.shared.global [$0], [$1], 16, $2;", None, shared, address, size)

    def commit(self) -> None:
        """Copies up to here are one group."""
        self._acting("cp.async.commit_group;", None)

    def wait(self, groups: int) -> None:
        """Until at most so many groups are on their way."""
        self._acting(f"cp.async.wait_group {groups};", None)

    # --- global memory ----------------------------------------------------------------------------------------------

    def load_integer(self, address: Value) -> Value:
        """An int32."""
        return self._acting("ld.global.b32 $0, [$1];", I32, address)

    def store_chunk(self, address: Value, numbers: Sequence[Value], condition: Value) -> None:
        """Sixteen bytes, where the condition holds."""
        text = "{ .reg .pred p; setp.ne.b32 p, $5, 0; @p st.global.v4.b32 [$0], {$1, $2, $3, $4}; }"
        self._acting(text, None, address, *numbers, self._flag(condition))

    def store_real(self, address: Value, number: Value, condition: Value) -> None:
        """A float32, where the condition holds."""
        text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.f32 [$0], $1; }"
        self._acting(text, None, address, number, self._flag(condition))

    # --- PTX --------------------------------------------------------------------------------------------------------

    def _flag(self, condition: Value) -> Value:
        return Value(self.builder, self.builder.zext(condition.ir, I32))

    def _pure(self, text: str, result: Any, *operands: Value) -> Value:
        """One result that depends on the operands alone."""
        return Value(self.builder, self._asm(text, result, operands, acts=False))

    def _acting(self, text: str, result: Any, *operands: Value) -> Value:
        """An instruction that keeps its place among others of its kind."""
        return Value(self.builder, self._asm(text, result, operands, acts=True))

    def _several(self, text: str, results: list[Any], *operands: Value, acts: bool = True) -> list[Value]:
        """Several results."""
        together = self._asm(text, ir.LiteralStructType(results), operands, acts=acts)
        return [Value(self.builder, self.builder.extract_value(together, at)) for at in range(len(results))]

    def _asm(self, text: str, result: Any, operands: Sequence[Value], *, acts: bool) -> Any:
        outputs = [] if result is None else getattr(result, "elements", (result,))
        letters = [f"={LETTER[kind]}" for kind in outputs] + [LETTER[one.ir.type] for one in operands]
        signature = ir.FunctionType(ir.VoidType() if result is None else result, [one.ir.type for one in operands])
        constraints = ",".join([*letters, "~{memory}"] if acts else letters)
        return self.builder.call(
            ir.InlineAsm(signature, text, constraints, side_effect=acts), [one.ir for one in operands]
        )
