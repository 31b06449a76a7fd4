"""Install the plugin projects beside this file into a folder, as a stranger's package would be installed: with pip.

A test gives the folder to a subprocess as PYTHONPATH; the entry points are found there like those of site-packages.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
PROJECTS = tuple(sorted(path.parent.name for path in HERE.glob("*/pyproject.toml")))


def install_into(folder: Path, names: Iterable[str]) -> None:
    """Build and install the named projects. Raises ValueError for an unknown name, RuntimeError with pip's own words."""
    chosen = tuple(names)
    unknown = sorted(set(chosen) - set(PROJECTS))
    if unknown:
        raise ValueError(f"no plugin project {', '.join(unknown)}; there are {', '.join(PROJECTS)}")
    if chosen:
        pip_install(folder, [HERE / name for name in chosen])


def pip_install(folder: Path, projects: Iterable[Path]) -> None:
    """Build and install projects. Raises RuntimeError with pip's own words."""
    paths = [str(path) for path in projects]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-index", "--no-deps", "--no-build-isolation", "--upgrade", "--target", str(folder)),
        *paths,
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"pip could not install {', '.join(paths)}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    install_into(Path(sys.argv[1]), sys.argv[2:] or PROJECTS)
