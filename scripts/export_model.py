#!/usr/bin/env python3
"""`pipewright export` of a checkout: scripts/export_model.py --help, docs/bring-your-own-model.md."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from pipewright.command_line import main  # noqa: E402

main(["export", *sys.argv[1:]])
