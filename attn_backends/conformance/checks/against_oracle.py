"""Output, LSE and gradients against the oracle, by the tolerance of the spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from attn_backends.conformance.baseline import judged_dtype
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.calling import Answer, Upstream, attend, attend_poisoned, gradients, upstream
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.comparing import first_wrong
from attn_backends.conformance.clause_map import OF_BACKWARD, OF_FORWARD, backward_clauses, forward_clauses
from attn_backends.conformance.inputs import Inputs, make_inputs
from attn_backends.conformance.oracle import oracle, oracle_gradients
from attn_backends.conformance.tolerance import Verdict, judge
from attn_backends.conformance.yardstick import Yardstick, of_forward, of_gradients


def forward(context: Context, case: Case) -> Finding:
    """out and lse of one forward, into poisoned memory."""
    inputs = make_inputs(case, context.device)
    return judged_forward(context, case, inputs, attend_poisoned(context, inputs))


def judged_forward(context: Context, case: Case, inputs: Inputs, answer: Answer) -> Finding:
    """What the tolerance says of an answer."""
    return first_wrong(_forward_findings(context, case, inputs, answer))


def _forward_findings(context: Context, case: Case, inputs: Inputs, answer: Answer) -> Iterator[Finding]:
    yield _as_promised(case, inputs, answer)
    exact = oracle(inputs.q, inputs.k, inputs.v, **inputs.given)
    measure = of_forward(context.manifest.numerics, inputs.operands, inputs.given, exact)
    dtype = judged_dtype(inputs.q, answer.out.dtype)
    verdict = judge(
        answer.out, exact.out, measure.rough["out"], dtype, "out", value_rms=exact.value_rms,
        expected=measure.expected["out"],
    )  # fmt: skip
    yield _finding("out", verdict)
    if answer.lse is not None:
        rough, expected = measure.rough.get("lse"), measure.expected.get("lse")
        yield _finding("lse", judge(answer.lse, exact.lse, rough, torch.float32, "lse", expected=expected))


def _as_promised(case: Case, inputs: Inputs, answer: Answer) -> Finding:
    """Shape, dtype and device of out and lse."""
    q, v, given = inputs.q, inputs.v, inputs.given
    own = q.dtype if case.q_format == "dense" else torch.bfloat16
    rows = _lse_shape(tuple(q.shape), given["layout"])
    wanted = {"out": (own if case.out_dtype is None else getattr(torch, case.out_dtype), (*q.shape[:-1], v.shape[-1]))}
    if case.lse:
        wanted["lse"] = (torch.float32, rows)
    got = answer.parts()
    for name, (dtype, shape) in wanted.items():
        tensor = got.get(name)
        if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.device != q.device:
            seen = "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            return Finding(ok=False, message=f"{name}: {seen}, promised {dtype} {list(shape)} on {q.device}")
    return Finding(ok=True)


def _lse_shape(q: tuple[int, ...], layout: str) -> tuple[int, ...]:
    if layout == "thd":
        return q[1], q[0]
    return (q[0], q[2], q[1]) if layout == "bshd" else q[:3]


def _finding(what: str, verdict: Verdict) -> Finding:
    ratios = {f"{what}.{rule}": ratio for rule, ratio in verdict.ratios.items()}
    return Finding(ok=verdict.ok, message=f"{what}: {verdict.message}", ratios=ratios)


def backward(context: Context, case: Case) -> Finding:
    """out, lse and every gradient, through out and lse together."""
    inputs = make_inputs(case, context.device)
    answer = attend(context, inputs)
    return first_wrong(
        [judged_forward(context, case, inputs, answer), judged_backward(context, inputs, answer, upstream(case, answer))]
    )  # fmt: skip


def judged(context: Context, case: Case, inputs: Inputs, parts: Mapping[str, torch.Tensor]) -> Finding:
    """What the tolerance says of the parts of one call: out, lse and d_q, ... (`calling.everything`)."""
    answer = Answer(out=parts["out"], lse=parts.get("lse"))
    found = {name.removeprefix("d_"): part for name, part in parts.items() if name.startswith("d_")}
    findings = [judged_forward(context, case, inputs, answer)]
    if found:
        findings.append(judged_gradients(context, inputs, answer, upstream(case, answer), found))
    return first_wrong(findings)


def judged_backward(context: Context, inputs: Inputs, answer: Answer, d: Upstream) -> Finding:
    """What the tolerance says of the gradients that the answer gives for these upstream ones."""
    return judged_gradients(context, inputs, answer, d, gradients(inputs, answer, d))


def judged_gradients(
    context: Context, inputs: Inputs, answer: Answer, d: Upstream, got: Mapping[str, torch.Tensor]
) -> Finding:
    """What the tolerance says of gradients, by their names."""
    d_out = torch.zeros_like(answer.out) if d.out is None else d.out
    arguments: dict[str, Any] = inputs.given
    exact = oracle_gradients(*inputs.operands, d_out, d.lse, **arguments)
    measure = of_gradients(context.manifest.numerics, inputs.operands, (d_out, d.lse), arguments, exact)
    dtype = judged_dtype(inputs.q, answer.out.dtype)
    return first_wrong(_gradient_findings(got, exact, measure, dtype))


def _gradient_findings(
    got: Mapping[str, torch.Tensor], exact: dict[str, torch.Tensor], measure: Yardstick, dtype: torch.dtype
) -> Iterator[Finding]:
    for name, gradient in got.items():
        expected = measure.expected.get(name)
        yield _finding(f"d_{name}", judge(gradient, exact[name], measure.rough[name], dtype, "grad", expected=expected))


def lse_alone(context: Context, case: Case) -> Finding:
    """Gradients through the LSE, with none for the output."""
    inputs = make_inputs(case, context.device)
    answer = attend(context, inputs)
    return judged_backward(context, inputs, answer, Upstream(out=None, lse=upstream(case, answer).lse))


def spread_gradients(context: Context, case: Case) -> Finding:
    """d_out with strides of its own: one number spread over everything, then heads and tokens the other way round."""
    inputs = make_inputs(case, context.device)
    answer = attend(context, inputs)
    d = upstream(case, answer)
    ones = answer.out.new_ones(()).expand(answer.out.shape)
    drawn = answer.out.detach() if d.out is None else d.out
    turned = drawn.transpose(-3, -2).contiguous().transpose(-3, -2)
    again = attend(context, inputs)
    return first_wrong(
        [
            judged_backward(context, inputs, answer, Upstream(out=ones, lse=d.lse)),
            judged_backward(context, inputs, again, Upstream(out=turned, lse=d.lse)),
        ]
    )


CHECKS = (
    Check(
        name="oracle", kind="oracle", clauses=OF_FORWARD, applies=lambda case: not needs_backward(case), run=forward,
        narrowed=forward_clauses,
    ),
    Check(
        name="gradients", kind="oracle", clauses=OF_BACKWARD, applies=needs_backward, run=backward,
        narrowed=backward_clauses,
    ),
    Check(
        name="lse_gradients", kind="oracle", clauses=("BACKWARD-3", "BACKWARD-2"),
        applies=lambda case: needs_backward(case) and case.lse, run=lse_alone,
    ),
    Check(
        name="d_out_strides", kind="oracle", clauses=("STRIDE-1", "BACKWARD-1"),
        applies=lambda case: needs_backward(case) and case.seq_q > 0, run=spread_gradients,
    ),
)  # fmt: skip
