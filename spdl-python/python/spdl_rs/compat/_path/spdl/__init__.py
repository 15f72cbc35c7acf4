"""`import spdl` in processes in which `spdl_rs.compat.install` was not called: see `spdl_rs.compat`."""

import importlib
import sys

from spdl_rs import compat

# The import system returns the entry of `sys.modules`, which is not this module then.
del sys.modules[__name__]
compat.install(force=True)
sys.modules[__name__] = importlib.import_module("spdl_rs")
