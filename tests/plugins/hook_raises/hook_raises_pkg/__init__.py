"""A watcher of decisions that fails; put `plugin` in with the host's hooks, in-process."""

import pluggy

hookimpl = pluggy.HookimplMarker("attn_backends")


class Watcher:
    """Counts the decisions it was shown, and raises at each."""

    def __init__(self):
        self.seen = 0

    @hookimpl
    def attn_backends_decided(self, decision):
        """Raise on every decision."""
        self.seen += 1
        raise RuntimeError("hook_raises: broken on purpose")


plugin = Watcher()
