"""Has no `run`, which its manifest promises."""
