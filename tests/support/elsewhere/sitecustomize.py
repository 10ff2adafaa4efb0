"""Imported by Python as it starts, where this directory is in PYTHONPATH: see __init__.py beside it."""

import importlib.util
import os
import sys
from pathlib import Path

system = os.environ.get("ELSEWHERE")
if system:
    spec = importlib.util.spec_from_file_location("schedd_elsewhere", Path(__file__).with_name("__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["schedd_elsewhere"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(system)
