"""`python -m attn_backends.cli`: the same as `attn-backends`, where the script is not on the path."""

from attn_backends.cli.main import main

main()
