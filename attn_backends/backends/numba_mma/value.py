"""`Value`: a number in a register while a kernel is built; arithmetic on it becomes code.

Operands are of one type, but Python's own numbers become constants of the other's type. Integers are signed, and wrap.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
Number = int | float


class Value:
    """One number per thread."""

    __slots__ = ("builder", "ir")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.ir = builder, value

    def __add__(self, other: Value | Number) -> Value:
        return self._made("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._made("sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._made("mul", other)

    def __and__(self, other: Value | Number) -> Value:
        return Value(self.builder, self.builder.and_(self.ir, self.like(other)))

    def __or__(self, other: Value | Number) -> Value:
        return Value(self.builder, self.builder.or_(self.ir, self.like(other)))

    def __xor__(self, other: Value | Number) -> Value:
        return Value(self.builder, self.builder.xor(self.ir, self.like(other)))

    def __rshift__(self, other: int) -> Value:
        return Value(self.builder, self.builder.ashr(self.ir, self.like(other)))

    def __lt__(self, other: Value | Number) -> Value:
        return self._compared("<", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self._compared(">", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self._compared(">=", other)

    def like(self, other: Value | Number) -> Any:
        """The other operand, a constant of this one's type where it is a plain number."""
        return other.ir if isinstance(other, Value) else ir.Constant(self.ir.type, other)

    def _made(self, name: str, other: Value | Number) -> Value:
        prefix = "f" if self.ir.type == F32 else ""
        return Value(self.builder, getattr(self.builder, prefix + name)(self.ir, self.like(other)))

    def _compared(self, sign: str, other: Value | Number) -> Value:
        name = "fcmp_ordered" if self.ir.type == F32 else "icmp_signed"
        return Value(self.builder, getattr(self.builder, name)(sign, self.ir, self.like(other)))
