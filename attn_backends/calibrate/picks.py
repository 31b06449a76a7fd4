"""Who would be picked for a request by which grounds: measured times, the cost model, priorities alone. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.registry.knobs import NO_KNOBS
from attn_backends.selector.cost.model import ROOFLINE
from attn_backends.selector.resolve import resolve
from attn_backends.selector.select import question_of
from attn_backends.selector.times import NO_COST_MODEL, NO_TIMES, CostModel, Measurements

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.environment import Environment
    from attn_backends.registry.registry import Registry
    from attn_backends.request import Request
    from attn_backends.selector.decision import Decision

MEASURED, COST_MODEL, PRIORITY = "measured", "cost model", "priority"
GROUNDS = (MEASURED, COST_MODEL, PRIORITY)


def decisions(
    request: Request, device: Device, registry: Registry, times: Measurements, environment: Environment | None = None
) -> dict[str, Decision]:
    """The decision by each of the grounds; by `measured` as `select` decides, the others without what stands above.

    `environment`: what is installed where it is decided; None is this machine's.
    """
    grounds: dict[str, tuple[Measurements, CostModel]] = {
        MEASURED: (times, ROOFLINE), COST_MODEL: (NO_TIMES, ROOFLINE), PRIORITY: (NO_TIMES, NO_COST_MODEL),
    }  # fmt: skip
    question, _ = question_of(
        request, None, None, device, environment, (), NO_KNOBS, registry.snapshot(), registry, NO_TIMES
    )  # fmt: skip
    return {
        name: resolve(question._replace(measurements=measurements, cost_model=model))
        for name, (measurements, model) in grounds.items()
    }
