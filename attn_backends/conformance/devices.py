"""Where a run happens: the words for it (cpu, cuda), the device behind one, and which is taken where nobody says. No torch."""

from __future__ import annotations

from attn_backends.conformance.standing import here
from attn_backends.device import Device
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.manifest import Manifest

REAL = ("cpu", "cuda")


class DeviceError(AttnBackendsError):
    """A device on which nothing can run here."""


def real_device(word: str) -> Device:
    """The device that is here. Raises DeviceError for a word that is none, and for cuda where there is no such device."""
    if word not in REAL:
        raise DeviceError(f"device {word!r}: a run is on {' or '.join(REAL)}")
    found = Device.of(word)
    if word == "cuda" and found.arch is None:
        raise DeviceError(
            "there is no CUDA device here; `attn-backends conformance plan NAME --device h200` plans for one"
        )
    return found


def usual_device(manifest: Manifest) -> Device:
    """The GPU if it is here and the backend declares it, else the CPU."""
    best = Device.current()
    return best if here(manifest.boxes, best) else Device.of("cpu")


def torch_word(kind: str) -> str:
    """What torch calls a kind of device: on a ROCm system it is cuda as well."""
    return "cuda" if kind == "rocm" else kind
