"""What enters a line: no user paths, no addresses; everything else stays as it was."""

from __future__ import annotations

import pytest

from attn_backends.selector.log.scrub import scrub, scrub_text

PATHS = [
    ("/home/ann/proj/kernels/lib.so: undefined symbol", "kernels/lib.so: undefined symbol"),
    ("cannot open /home/ann/lib.so", "cannot open lib.so"),
    ("in /home/ann", "in ~"),
    ("in /root/x/y/z.py, line 3", "in y/z.py, line 3"),
    ("/Users/Ann/a/b/c.toml", "b/c.toml"),
    ("'/Users/Ann Bee/My Kernels/v 2/lib.so': no such file", "'v 2/lib.so': no such file"),
    ('File "/opt/venv/lib/python3.11/site-packages/fa/adapter.py", line 9', 'File "fa/adapter.py", line 9'),
    ("(/opt/a/b/c.so)", "(b/c.so)"),
    ("path=/srv/x/y/z", "path=y/z"),
    ("error:/home/ann/a/b/x.so", "error:b/x.so"),
    ("gcc -I/home/ann/inc/cuda -O2", "gcc -Iinc/cuda -O2"),
    ("~/work/secret/a/b.py", "a/b.py"),
    ("~ann/b.py", "b.py"),
    ("file:///home/ann/a/b/c.py", "b/c.py"),
    (r"C:\Users\Ann Bee\kernels\fa\lib.dll missing", "fa/lib.dll missing"),
    (r"C:\Users\Ann\lib.dll", "lib.dll"),
    ("two: /home/a/b/c/d and /home/e/f/g/h", "two: c/d and g/h"),
    ("at 0x7f2e4c0a1b20>", "at 0x?>"),
]
KEPT = [
    "https://github.com/owner/repo/issues/12",
    "see https://host/home/page for more",
    "1/sqrt(head_dim)",
    "q/k/v strides and/or layout",
    "a / b, 9.0/10.0",
    "triton_tiled.toml [[capability]] 2",
    "</script>",
    "error 0xC0000005",
    "regex \\d+ or a\\b",
    "head_dim: got 320, want {64, 128}",
    "./relative/path/of/a/file and ../one/two/three",
    "",
]


@pytest.mark.parametrize(("text", "left"), PATHS, ids=[text for text, _left in PATHS])
def test_paths_keep_two_components_and_no_user(text: str, left: str) -> None:
    """Enough to find the file, nothing of whose machine it was."""
    assert scrub_text(text) == left


@pytest.mark.parametrize("text", KEPT)
def test_other_text_stays(text: str) -> None:
    """URLs, fractions, code and relative names are no absolute paths."""
    assert scrub_text(text) == text


@pytest.mark.parametrize("text", [text for text, _left in PATHS] + KEPT)
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    """A record that was read and is written again stays the same."""
    assert scrub_text(scrub_text(text)) == scrub_text(text)


def test_every_text_of_a_record_is_scrubbed() -> None:
    """However deep, keys included; the input itself is left alone."""
    path = "/home/ann/a/b/c.py"
    value = {"x": [{"message": path}], path: (path,)}
    assert scrub(value) == {"x": [{"message": "b/c.py"}], "b/c.py": ["b/c.py"]}
    assert value["x"] == [{"message": path}]


class Tensor:
    def __repr__(self) -> str:
        return "tensor([1., 2.], data_ptr=140123456789)"

    __str__ = __repr__


def test_an_object_leaves_only_the_name_of_its_type() -> None:
    """No tensor's values or pointers can enter through a reason's `got`."""
    assert scrub({"got": Tensor()}) == {"got": "<Tensor>"}
