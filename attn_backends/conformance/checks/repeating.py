"""The same call again: bit-equal under `deterministic`, alone or in a batch under `batch_invariant`, compiled, captured."""

from __future__ import annotations

from typing import Any

import torch

import attn_backends
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.calling import Answer, attend, everything, gradients, upstream
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.comparing import bit_equal, first_wrong, near
from attn_backends.conformance.checks.reordering import reordered
from attn_backends.conformance.checks.seen import logical_lse, logical_out
from attn_backends.conformance.drawing import Logical, draw
from attn_backends.conformance.inputs import Inputs, make_inputs, store
from attn_backends.conformance.lengths import Lengths
from attn_backends.conformance.standing import graph_level

TIMES = 5
MATES = 64  # sequences in the batch of which one is looked at
SLOT = 41


def deterministic(context: Context, case: Case) -> Finding:
    """Output, LSE and gradients, again and after other work."""
    inputs = make_inputs(case, context.device)
    first = everything(context, case, inputs)
    other = make_inputs(case.replace(seed=case.seed + 1), context.device)
    findings = []
    for _ in range(TIMES - 1):
        everything(context, case, other)
        findings.append(bit_equal(everything(context, case, inputs), first, "the time of the call"))
    return first_wrong(findings)


def batch_invariant(context: Context, case: Case) -> Finding:
    """One sequence of a batch of 64, and the same sequence alone: the same bits."""
    crowd = draw(case.replace(batch=MATES))
    alone = _only(crowd, SLOT, case.replace(batch=1))
    together = attend(context, store(crowd, context.device))
    single = attend(context, store(alone, context.device))
    rows = slice(0, crowd.lengths.q[SLOT])
    want = {name: tensor[0, rows] for name, tensor in _in_order(single, alone).items()}
    got = {name: tensor[SLOT, rows] for name, tensor in _in_order(together, crowd).items()}
    return bit_equal(got, want, "its batch mates")


def _only(crowd: Logical, slot: int, case: Case) -> Logical:
    """One sequence of a batch as a batch of its own; max_seqlen_* stay the case's."""
    mask, blocks, slopes = crowd.mask, crowd.blocks, crowd.slopes
    return Logical(
        case=case, lengths=Lengths(q=(crowd.lengths.q[slot],), k=(crowd.lengths.k[slot],)),
        q=crowd.q[slot : slot + 1], k=crowd.k[slot : slot + 1], v=crowd.v[slot : slot + 1], sinks=crowd.sinks,
        mask=mask[slot : slot + 1] if mask is not None and mask.dim() == 4 else mask,
        blocks=blocks[slot : slot + 1] if blocks is not None and blocks.shape[0] > 1 else blocks,
        slopes=slopes[slot : slot + 1] if slopes is not None and slopes.dim() == 2 else slopes,
        inside=crowd.inside,
    )  # fmt: skip


def _in_order(answer: Answer, logical: Logical) -> dict[str, torch.Tensor]:
    found = {"out": logical_out(answer.out, logical)}
    return found if answer.lse is None else {**found, "lse": logical_lse(answer.lse, logical)}


def compiled(context: Context, case: Case) -> Finding:
    """One graph, through the host's op, gives what eager code gives; at a second shape too."""
    torch.compiler.reset()
    fn = torch.compile(_call, backend="aot_eager", fullgraph=True)
    findings = []
    for one in (case, case.replace(batch=case.batch + 1)):
        inputs = make_inputs(one, context.device)
        given = {**inputs.given, "backend": context.backend, "policy": context.policy()}
        out = fn(inputs.q, inputs.k, inputs.v, given)
        got = Answer(out=out[0], lse=out[1]) if isinstance(out, tuple) else Answer(out=out, lse=None)
        want = attend(context, inputs)
        size = float(want.out.detach().to(torch.float64).square().mean().sqrt())
        findings.append(near(context, got, want, inputs, "compilation", size))
        if needs_backward(one):
            findings.append(_same_gradients(context, one, inputs, got, want))
    torch.compiler.reset()
    return first_wrong(findings)


def _call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> Any:
    return attn_backends.attention(q, k, v, **given)


def _same_gradients(context: Context, case: Case, inputs: Inputs, got: Answer, want: Answer) -> Finding:
    d = upstream(case, want)
    first, second = gradients(inputs, want, d), gradients(inputs, got, d)
    findings = []
    for name, grad in first.items():
        size = float(grad.to(torch.float64).abs().max()) if grad.numel() else 0.0
        pair = Answer(out=second[name], lse=None), Answer(out=grad, lse=None)
        findings.append(near(context, *pair, inputs, f"compilation (gradient of {name})", size))
    return first_wrong(findings)


def captured(context: Context, case: Case) -> Finding:
    """A captured graph, replayed with other numbers and lengths in place, gives what eager code gives."""
    level = graph_level(context.manifest.boxes, case, context.facts)
    order = torch.arange(case.batch).roll(1)
    inputs = make_inputs(case, context.device)
    other = store(reordered(draw(case.replace(seed=case.seed + 2)), order), context.device)
    stream = torch.cuda.Stream(context.device)
    stream.wait_stream(torch.cuda.current_stream(context.device))
    with torch.cuda.stream(stream), torch.no_grad():
        attend(context, inputs, graph=level)  # decides, compiles and allocates outside the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            answer = attend(context, inputs, graph=level)
    torch.cuda.synchronize(context.device)
    want = attend(context, other, graph=level)
    for name, tensor in inputs.tensors().items():
        tensor.untyped_storage().copy_(other.tensors()[name].untyped_storage())  # whatever the strides
    graph.replay()
    torch.cuda.synchronize(context.device)
    size = float(want.out.to(torch.float64).square().mean().sqrt())
    return near(context, answer, want, inputs, "capture", size)


def _captures(case: Case) -> bool:
    return not needs_backward(case) and case.seq_q > 0 and case.dropout == 0 and "per_tensor" not in case.granularities


CHECKS = (
    Check(
        name="deterministic", kind="property", run=deterministic, clauses=("DETERMINISM-1", "DETERMINISM-2"),
        narrowed=lambda case: ("DETERMINISM-1", *(("DETERMINISM-2",) if needs_backward(case) else ())),
        applies=lambda case: case.deterministic and case.seq_q > 0,
    ),
    Check(
        name="batch_invariant", kind="property", run=batch_invariant, clauses=("BATCHINV-1",),
        applies=lambda case: case.batch_invariant and not needs_backward(case) and case.dropout == 0
        and case.granularities <= {"per_channel"} and case.seq_q > 0,
    ),
    Check(
        name="compiled", kind="property", run=compiled, clauses=("COMPILE-1",), level="full",
        applies=lambda case: case.seq_q > 0 and case.seq_k > 0 and case.values != "large",
    ),
    Check(
        name="captured", kind="property", run=captured, clauses=("GRAPH-1", "GRAPH-2"), gpu=True, applies=_captures,
    ),
)  # fmt: skip
