"""What every test is given: an empty data folder, and one core where tests run side by side.

What this user measured and certified is not what the tests are about.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="attn-backends-tests-")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Read when torch is imported. As many threads as cores in each of as many workers wait for each other by spinning: two
    # workers on two cores took twice as long. A test that is about threads asks for them (`two_threads`).
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def two_threads() -> Iterator[None]:
    """torch with two threads, for a module whose promises are about several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that take long start first, or one worker is left with them at the end; the order is random otherwise."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
