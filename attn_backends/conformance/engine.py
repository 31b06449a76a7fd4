"""`run_item`: one check on one case in this process, and the outcome that it means.

| kind of check | ok | not ok | raises |
| --- | --- | --- | --- |
| oracle, exact, property | PASS | FAIL | OVERCLAIM, of the backend; FAIL, of the suite itself |
| refusal | REFUSED | FAIL, or SILENT_WRONG | FAIL |
| probe | UNDERCLAIM | REFUSED | REFUSED |

A backend that leaves the process (SystemExit) is CRASH, here as in a worker.
"""

from __future__ import annotations

import time
import warnings

import torch

from attn_backends.conformance.checks import CHECKS, Check, Context, Finding, context_of
from attn_backends.conformance.checks.calling import NoEvidenceError
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.tolerance import BadReferenceError
from attn_backends.errors import RequestError

LONGEST_MESSAGE = 2000  # characters; a backend may say anything


def run_item(backend: str, item: Item, device: torch.device | str = "cpu") -> Result:
    """Run one item. Raises KeyError for a check that is none, UnknownBackendError for a backend nobody registered."""
    return run_with(context_of(backend, device), item)


def run_with(context: Context, item: Item) -> Result:
    """Run one item in a context that is there already."""
    check = CHECKS[item.check]
    started = time.perf_counter()
    outcome, finding = _outcome(check, context, item)
    return Result(
        id=item.id, outcome=outcome, clauses=item.clauses or check.clauses_of(item.case),
        message=finding.message[:LONGEST_MESSAGE], seconds=time.perf_counter() - started, ratios=finding.ratios,
    )  # fmt: skip


def _outcome(check: Check, context: Context, item: Item) -> tuple[Outcome, Finding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            finding = check.run(context, item.case)
    except KeyboardInterrupt:
        raise
    except (BadReferenceError, RequestError) as error:
        return Outcome.FAIL, _said("the suite is at fault", error)
    except NoEvidenceError as error:
        return Outcome.FAIL, _said("no evidence", error)
    except Exception as error:  # noqa: BLE001  # a backend may raise anything
        raised = Outcome.REFUSED if check.kind == "probe" else Outcome.FAIL
        return (raised if check.kind in ("probe", "refusal") else Outcome.OVERCLAIM), _said("raised", error)
    except BaseException as error:  # noqa: BLE001  # SystemExit from a kernel
        return Outcome.CRASH, _said("left the process", error)
    return finding.outcome or _meaning(check, finding), finding


def _said(what: str, error: BaseException) -> Finding:
    try:
        text = str(error)
    except Exception as raised:  # noqa: BLE001  # of an error that cannot be shown
        text = f"(showing it raises {type(raised).__name__})"
    return Finding(ok=False, message=f"{what}: {type(error).__name__}: {text}")


def _meaning(check: Check, finding: Finding) -> Outcome:
    if check.kind == "refusal":
        return Outcome.REFUSED if finding.ok else Outcome.FAIL
    if check.kind == "probe":
        return Outcome.UNDERCLAIM if finding.ok else Outcome.REFUSED
    return Outcome.PASS if finding.ok else Outcome.FAIL
