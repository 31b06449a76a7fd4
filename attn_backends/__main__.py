"""`python -m attn_backends`: the same as `attn-backends`, where the script is not on the path."""

from attn_backends.cli.main import main

if __name__ == "__main__":
    main()
