"""Running one case: which check it is, and what its errors mean. Torch is imported for cases with tensors alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from attn_backends.conformance.field_cases.decisions import differences_of_decision
from attn_backends.conformance.field_cases.outcome import FAILED, PASSED, REFUSED, Difference, Outcome
from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.request_errors import differences_of_bad_call, differences_of_bad_request
from attn_backends.conformance.field_cases.resolutions import differences_of_resolutions
from attn_backends.errors import UnfitBackendError

Check = Callable[[], list[Difference]]


def run_case(case: Case, dtype: str | None = None, *, backend: str | None = None, device: str = "cpu") -> Outcome:
    """Run a case in one of its dtypes (None for a case without tensors), through the selector or a forced backend.

    A forced backend that refuses a case is `refused`; every other error is a failure that names it.
    """
    try:
        return _judged(case, dtype, _check(case, dtype, backend, device)())
    except UnfitBackendError as error:
        if backend is not None:
            return Outcome(case=case.id, clause=case.clause, dtype=dtype, status=REFUSED, refusal=str(error))
        return _raised(case, dtype, error)
    except Exception as error:  # noqa: BLE001  # whatever comes, the other cases still run
        return _raised(case, dtype, error)


def _raised(case: Case, dtype: str | None, error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    return _judged(case, dtype, [Difference(what="error", expected="none", got=text)])


def _judged(case: Case, dtype: str | None, differences: Sequence[Difference]) -> Outcome:
    """Passed without differences, else failed."""
    status = FAILED if differences else PASSED
    return Outcome(case=case.id, clause=case.clause, dtype=dtype, status=status, differences=tuple(differences))


def _check(case: Case, dtype: str | None, backend: str | None, device: str) -> Check:
    if not case.needs_tensors:
        return _light_check(case)
    from attn_backends.conformance.field_cases.calling import Place

    forced = backend if case.kind in ("value", "property") and "call" not in case.table else None
    place = Place(dtype=dtype or case.dtypes[0] or "float32", device=device, backend=forced)
    return functools.partial(_tensor_check(case), case, place)


def _light_check(case: Case) -> Check:
    if case.kind == "decision":
        return functools.partial(differences_of_decision, case)
    if case.kind == "request-error":
        return functools.partial(differences_of_bad_request, case)
    if case.get("property") == "resolutions":
        return functools.partial(differences_of_resolutions, case)
    raise ValueError(f"case {case.id}: nothing here checks property {case.get('property')!r} without tensors")


def _tensor_check(case: Case) -> Callable[[Case, Any], list[Difference]]:
    from attn_backends.conformance.field_cases.relations import CHECKS
    from attn_backends.conformance.field_cases.states import differences_of_append, differences_of_merge
    from attn_backends.conformance.field_cases.values import differences_of_value

    if case.kind == "request-error":
        return differences_of_bad_call
    named = {"merge_states": differences_of_merge, "append_kv": differences_of_append}
    if "call" in case.table:
        if case.get("call") not in named:
            raise ValueError(f"case {case.id}: call {case.get('call')!r} is none of {', '.join(named)}")
        return named[case.get("call")]
    if case.kind == "value":
        return differences_of_value
    if case.get("property") not in CHECKS:
        raise ValueError(f"case {case.id}: property {case.get('property')!r} is none of {', '.join(CHECKS)}")
    return CHECKS[case.get("property")]
