"""Leaves the process when imported; its manifest is fine."""

import sys

sys.exit("sys_exit_at_import: leaving on purpose")
