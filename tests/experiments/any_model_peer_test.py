#!/usr/bin/env python3
"""The page of experiments/any_model_peer: what is counted, and which reasons are one."""
import pathlib
import sys
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "experiments/common"), str(root / "experiments/any_model_peer")]
import table  # noqa: E402

NAMES = ["a", "b", "c", "d"]
LINES = [
    {"side": "pytorch", "model": "d", "outcome": "failed", "reason": "ValueError: got 3 tensors for 'x1'", "tried": ["failed"] * 3, "eager": "equal"},
    {"side": "pytorch", "model": "a", "outcome": "equal", "difference": 0.0, "cut": "before h.1", "tried": ["failed", "equal"]},
    {"side": "pytorch", "model": "b", "outcome": "differs", "difference": 0.02, "cut": "before h.1", "tried": ["differs"] * 3},
    {"side": "pytorch", "model": "c", "outcome": "failed", "reason": "ValueError: got 7 tensors for 'y'", "tried": ["failed"] * 3, "eager": "failed"},
    {"side": "door", "model": "a", "outcome": "trains", "strategy": "dp", "stages": 1, "ranks": 2},
    {"side": "door", "model": "b", "outcome": "fails", "reason": "export: no | such"},
]


class Table(unittest.TestCase):
    def test_counts_are_of_the_models_that_were_tried(self):
        page = table.page(LINES, NAMES)
        self.assertIn("| `torch.distributed.pipelining` | trains, losses of plain PyTorch | 1 of 4 |", page)
        self.assertIn("| `torch.distributed.pipelining` | fails at run time | 2 of 4 |", page)
        self.assertIn("| `pipewright train` | trains, and the weights are read back | 1 of 2 |", page)
        self.assertIn("1 under the second cut that was tried; 1 to the last bit, the one that is furthest off to 0.0e+00", page)
        self.assertIn("Of 2 models of transformers that do not, 1 do with", page)
        self.assertIn("Tried by `pipewright train`: 2 of 4 models, a, b.", page)

    def test_reasons_that_differ_in_names_and_numbers_are_one(self):
        page = table.page(LINES, NAMES)
        self.assertIn("| fails at run time | 2 | `ValueError: got 7 tensors for 'y'` | c, d |", page)
        self.assertIn("| fails | 1 | `export: no \\| such` | b |", page)
        self.assertIn("| b | 2.0e-02 | before h.1 |", page)


if __name__ == "__main__":
    unittest.main()
