"""`python -m spdl_rs`: the command `spdl`."""

from ._command_line import main

main()
