"""The command as a process: exit codes, what it imports, a closed pipe. Fresh interpreters, hence few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "triton", "numba", "numpy")
BLOCKED = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from attn_backends.cli.main import main
sys.argv = ["attn-backends", *sys.argv[1:]]
main()
"""


def process(*words, **more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTN_BACKENDS_")}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**environment, **more}, timeout=120, check=False
    )


def test_list_is_quick():
    """Far below what importing torch would take; the exact time is a benchmark, not a test."""
    started = time.perf_counter()
    done = process("-m", "attn_backends.cli", "list", "--json")
    assert time.perf_counter() - started < 2
    assert json.loads(done.stdout)["backends"]
    assert done.stderr == ""


def test_the_package_is_the_command_line():
    """`python -m attn_backends`, where the script is not on the path."""
    done = process("-m", "attn_backends", "show", "eager", "--json")
    assert json.loads(done.stdout)["name"] == "eager"
    assert done.stderr == ""


UNNEEDED_BY_LIST = {  # module -> who would load it
    "attn_backends.device": "certificates, for the name of an architecture",
    "attn_backends.request": "decisions",
    "attn_backends.selector.decision": "filters, for records that nobody lists",
    "attn_backends.selector.quarantine": "filters, for a type",
    "packaging.tags": "packaging.utils, for the plain form of a name",
    "rich": "tables; `list` draws its own",
}


def test_list_loads_nothing_that_it_does_not_use():
    """Every module is read and run before the first backend is found; these took a tenth of the time."""
    run = (
        "import sys; from attn_backends.cli.main import cli; cli(['list'], standalone_mode=False); print(*sys.modules)"
    )
    loaded = process("-c", run).stdout.splitlines()[-1].split()
    assert {name: why for name, why in UNNEEDED_BY_LIST.items() if name in loaded} == {}


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("show", "eager"),
        ("explain", "--device", "h200"),
        ("why-not", "sdpa_flash", "--device", "h200", "--softcap", "30"),
        ("plan", "gpt2", "--device", "h200"),
        ("doctor", "--no-load"),
        ("completion", "bash"),
        ("--help",),
    ],
    ids=lambda words: words[0],
)
def test_no_command_but_the_demo_needs_torch(words):
    """An interpreter in which torch, triton, numba and numpy cannot be imported answers all the same."""
    done = process("-c", BLOCKED, *words)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    assert done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("demo",),
        ("conformance", "plan", "eager", "--device", "h200"),
        ("conformance", "plan", "eager", "--json"),
        ("conformance", "run", "eager"),
        ("conformance", "self-test"),
        ("bench", "--suite", "prefill"),
        ("calibrate",),
        ("regret",),
        ("quantization-error",),
    ],
    ids=" ".join,
)
def test_what_needs_torch_says_how_to_get_it(words):
    """What for, and how, on two lines; exit code 2, and no traceback."""
    done = process("-c", BLOCKED, *words)
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert error.endswith(", and torch is not installed")
    assert hint == "hint: in a clone: pip install '.[torch]'"


def test_a_torch_that_cannot_be_loaded_says_why(tmp_path):
    """Its libraries are missing: no traceback either."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    done = process(
        "-m", "attn_backends.cli", "conformance", "plan", "eager", "--device", "h200", PYTHONPATH=str(tmp_path)
    )
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.endswith("torch cannot be imported: libcudart.so.12: cannot open shared object file")
    assert hint == "hint: in a clone: pip install '.[torch]'"


@pytest.mark.parametrize(
    ("words", "code"),
    [(("explain", "--device", "h200"), 0), (("explain", "--device", "h200", "--backend", "sdpa_cpu_flash"), 1), (("show", "x"), 2)],
    ids=["0", "1", "2"],
)  # fmt: skip
def test_exit_codes_of_the_process(words, code):
    """What a script sees."""
    assert process("-m", "attn_backends.cli", *words).returncode == code


def test_bash_completes_backends_and_commands():
    """The names come from the registry."""
    more = {"_ATTN_BACKENDS_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    done = process("-m", "attn_backends.cli", COMP_WORDS="attn-backends show ea", **more)
    assert "plain,eager" in done.stdout
    done = process("-m", "attn_backends.cli", COMP_WORDS="attn-backends ex", **{**more, "COMP_CWORD": "1"})
    assert "plain,explain" in done.stdout
