"""`intrinsics`: the stages as functions that a kernel in numba calls; each call becomes the stage's code, in place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from attn_backends.backends.numba_mma.config import Config
from attn_backends.backends.numba_mma.machine import Machine
from attn_backends.backends.numba_mma.stage import Results, Stage
from attn_backends.backends.numba_mma.toolchain import intrinsic, types
from attn_backends.backends.numba_mma.value import Value

KINDS = {"real": types.float32, "integer": types.int32, "long": types.int64}


def intrinsics(stages: Mapping[str, Stage], config: Config) -> dict[str, Any]:
    """One for each stage."""
    return {name: _intrinsic(one, config) for name, one in stages.items()}


def _intrinsic(one: Stage, config: Config) -> Any:
    results = one.results(config)

    def typed(_typing: Any, *operands: Any) -> Any:
        return _type_of(results)(*map(_plain, operands)), code

    def code(context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
        made = one.function(Machine(builder, config.half), config, *(_unpacked(builder, each) for each in operands))
        return _packed(context, builder, results, made)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("_", *one.operands)]
    setattr(typed, "__signature__", inspect.Signature(parameters))  # noqa: B010  # numba counts the operands by it
    typed.__name__ = one.function.__name__
    return intrinsic(typed)


def _type_of(results: Results) -> Any:
    if results is None:
        return types.void
    kind, count = results
    return types.UniTuple(KINDS[kind], count) if count else KINDS[kind]


def _plain(kind: Any) -> Any:
    """A literal's type; integers are 64 bits wide, as numba's arithmetic makes them, unless they come from a stage."""
    kind = types.unliteral(kind)
    return kind if isinstance(kind, types.UniTuple) or kind not in types.integer_domain else types.int64


def _unpacked(builder: Any, operand: Any) -> Any:
    count = getattr(operand.type, "count", 0)
    if not count:
        return Value(builder, operand)
    return [Value(builder, builder.extract_value(operand, at)) for at in range(count)]


def _packed(context: Any, builder: Any, results: Results, made: Any) -> Any:
    if results is None:
        return context.get_dummy_value()
    _kind, count = results
    if not count:
        return made.ir
    together = ir.Constant(ir.ArrayType(made[0].ir.type, count), ir.Undefined)
    for at, value in enumerate(made):
        together = builder.insert_value(together, value.ir, at)
    return together
