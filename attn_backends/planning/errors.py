"""`ConfigError`: a model config that cannot be read, with the key that is missing or wrong.

It is not about attention calls (`RequestError`) nor about backends. Anybody may import this module.
"""

from __future__ import annotations

from attn_backends.errors import AttnBackendsError

ROOT = "config"


class ConfigError(AttnBackendsError, ValueError):
    """`where` is the file or the part of the config, `hint` what to do about it.

    `missing` are the canonical names of the keys that were looked for in vain.
    """

    def __init__(
        self, message: str, *, where: str = ROOT, missing: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(f"{where}: {message}")
        self.message = message
        self.where = where
        self.missing = missing
        self.hint = hint

    def in_file(self, file: str) -> ConfigError:
        """The same error of a config that was read from `file`: it says so, and what to mend there."""
        place = self.where.removeprefix(ROOT).removeprefix(".")
        name = file.replace("\\", "/").rpartition("/")[2]
        to_do = f"add {', '.join(self.missing)} to {name}" if self.missing else f"correct {name}"
        hint = f"{to_do}, in {place}" if place else to_do
        where = f"{file}: {place}" if place else file
        return ConfigError(self.message, where=where, missing=self.missing, hint=hint)
