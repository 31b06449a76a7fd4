"""`--device` of the conformance commands: where a run happens (cpu, cuda), or which device a plan is for (h200, sm_90).

A device that is not here may be written `pretend:h200` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attn_backends.cli.options import Name, devices
from attn_backends.device import Device

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

Command = TypeVar("Command", bound=Callable[..., Any])
REAL = ("cpu", "cuda")
PRETEND = "pretend:"
DEFAULT = "[the GPU if it is here and declared, else cpu]"


def _pretended() -> Iterable[str]:
    names = devices()
    return dict.fromkeys((*REAL, *names, *(f"{PRETEND}{name}" for name in names)))


def device_option(*, pretended: bool) -> Callable[[Command], Command]:
    """The option; None stands for the usual device of a backend. `pretended`: others may be named too."""
    words = "cpu, cuda, or one that is not here: h200, sm_90, ..." if pretended else "cpu or cuda."
    known = Name("device", _pretended if pretended else lambda: REAL)
    return click.option("--device", type=known, help=f"{words}  {DEFAULT}")


def chosen_device(text: str | None, manifest: Manifest) -> Device:
    """The device behind the option. Raises DeviceError for one that is not here, RequestError for an unknown name."""
    from attn_backends.conformance.devices import real_device, usual_device

    if text is None:
        return usual_device(manifest)
    return real_device(text) if text in REAL else Device.pretend(text.removeprefix(PRETEND))
