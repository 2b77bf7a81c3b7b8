#!/usr/bin/env python3
"""experiments/published_tables: what is not there is skipped and says so; sizes of groups."""
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "experiments/common"), str(root / "experiments/published_tables")]
import report  # noqa: E402
import tables  # noqa: E402


class PublishedTables(unittest.TestCase):
    def test_missing_inputs(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            optimizer = tables.Optimizer(folder, folder)
            lines = [line for name in tables.TABLES for line in tables.lines_of(name, optimizer)]
            self.assertEqual({line["status"] for line in lines if line["table"] != "elsewhere"}, {"skipped"})
            self.assertIn("vgg16.txt is not among the inputs", [line.get("reason") for line in lines])
            report.write(folder, lines)
            self.assertIn("| VGG-16, 4x4 A, 15-1 | 5.28 | skipped: vgg16.txt is not among the inputs |", (folder / "results.md").read_text())

    def test_quartiles(self):
        self.assertEqual(tables.quartiles([0, 0, 0, 5]), (4, 4, 4, 4, 4))
        self.assertEqual(tables.quartiles([1, 1, 1, 1, 1]), (1, 2, 3, 4, 5))


if __name__ == "__main__":
    unittest.main()
