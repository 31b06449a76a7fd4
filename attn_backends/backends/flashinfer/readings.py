"""Numbers of a device tensor on the host: read once, and again when torch has written to the tensor since.

Reading is a device-to-host copy that waits for the stream, and FlashInfer plans on the host: it needs the lengths there.
A tensor of lengths that serves many layers is the same object at the same version, and is read once. Whatever writes
to it without torch's knowledge (a kernel on its raw pointer, the replay of a CUDA graph) is not seen: pass a new tensor
then.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch.utils.weak import WeakIdKeyDictionary

Numbers = tuple[int, ...] | tuple[float, ...]


def version_of(tensor: torch.Tensor) -> int | None:
    """How often torch has written to a tensor; None for inference tensors, where nobody counts."""
    return None if tensor.is_inference() else tensor._version


@dataclass(slots=True)
class Readings:
    """What was read from which tensor, as long as the tensor lives."""

    _held: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    def numbers(self, tensor: torch.Tensor) -> Numbers:
        """The elements of a 1-d or single-element tensor."""
        version = version_of(tensor)
        held: tuple[int, Numbers] | None = self._held.get(tensor)
        if held is not None and held[0] == version:
            return held[1]
        numbers: Numbers = tuple(tensor.reshape(-1).tolist())
        if version is not None:
            self._held[tensor] = (version, numbers)
        return numbers


@dataclass(slots=True)
class Seen:
    """Remembers one tensor, to tell whether the next one is the same with the same contents."""

    _tensor: weakref.ref[torch.Tensor] | None = None
    _version: int | None = None

    def again(self, tensor: torch.Tensor) -> bool:
        """Whether it is the tensor of the last time, unwritten since; it is the one to compare with from now on."""
        version = version_of(tensor)
        same = self._tensor is not None and self._tensor() is tensor and version == self._version
        self._tensor, self._version = weakref.ref(tensor), version
        return same and version is not None
