"""What this user measured and certified is not what the tests are about: they look into an empty data folder."""

from __future__ import annotations

import os
import tempfile

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="attn-backends-tests-")
