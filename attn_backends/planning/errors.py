"""`ConfigError`: a model config that cannot be read, with the key that is missing or wrong.

It is not about attention calls (`RequestError`) nor about backends. Anybody may import this module.
"""

from __future__ import annotations

from attn_backends.errors import AttnBackendsError


class ConfigError(AttnBackendsError, ValueError):
    """`where` is the part of the config, `missing` the canonical names of the keys that were looked for in vain."""

    def __init__(self, message: str, *, where: str = "config", missing: tuple[str, ...] = ()) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
        self.missing = missing
