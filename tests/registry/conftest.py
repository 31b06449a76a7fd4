"""The plugin projects of tests/plugins, installed once per run into a folder."""

from __future__ import annotations

import pytest

from tests.plugins.install import PROJECTS, install_into


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    install_into(folder, PROJECTS)
    return folder
