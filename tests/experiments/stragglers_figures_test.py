#!/usr/bin/env python3
"""experiments/stragglers: its figures, of runs whose times are known."""
import json
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "experiments/stragglers"))
import figures  # noqa: E402
import pages  # noqa: E402


def written(folder, losses, accuracies):
    folder.mkdir()
    ranks = [{"stage": stage, "replica": replica, "sync_wait_seconds": 1.0, "largest_spread": 0.1 * replica, "times": {"trained_seconds": 10.0, "minibatches": 100 if replica else 20}}
             for stage in range(2) for replica in range(2)]
    sync = {"rule": "partial-reduce", "pipelines": 2, "group_sizes": [2, 3], "columns": 1, "longest_window_updates": 3.5}
    summary = {"minibatches": 120, "ranks": ranks, "sync": sync}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [{"minibatch": k, "loss": loss, "elapsed_seconds": 0.5 * k} for k, loss in enumerate(losses)]
    lines += [{"evaluation": {"epoch": epoch, "top1": top1}} for epoch, top1 in enumerate(accuracies)] + [{"spread": {"rank": 0, "found": 400, "part": 0.1}}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def test_run(self):
        folder = written(self.path / "run", [1.0] * 10, [0.5])
        run = figures.of_run(folder, 2)
        self.assertEqual(run["minibatches_per_second"], 12)
        self.assertEqual(run["group_sizes"], {1: 2, 2: 3})
        self.assertEqual(run["longest_window_updates_per_pipeline"], 3.5)
        self.assertEqual(run["largest_spread"], 0.1)
        self.assertEqual(run["minibatches_by_pipeline"], [20, 100])
        self.assertAlmostEqual(run["sync_wait_fraction"], 0.1)

    def test_time_to_a_loss(self):
        self.assertEqual(figures.smoothed([4, 2, 0, 4], 2), [3, 1, 2])
        lines = []
        for sync, steps in (("all-reduce", 1), ("partial-reduce", 2)):
            folder = written(self.path / sync, [1 / (1 + steps * k) for k in range(800)], [0.8] if steps == 1 else [0.79, 0.82])
            lines.append({"case": "learn", "sync": sync, "repeat": 0, "run": str(folder), "minibatches": 1, "accuracies": figures.accuracies(folder),
                          "layout": "2x2", "operation_ms": 10, "minibatches_per_second": steps})
        row = pages.learned(lines)[0]
        self.assertEqual(row["base_seconds"], 0.5 * 799)
        self.assertTrue(0.5 <= row["seconds"] / row["base_seconds"] < 0.7)
        text = "\n".join(pages.learned_table([row]))
        self.assertIn("as many epochs -1.00 points, at the end +2.00", text)
        pages.write(self.path, lines)
        self.assertIn("partial-reduce", (self.path / "loss.svg").read_text())

    def test_rates(self):
        lines = [{"case": "slow", "layout": "4x2", "sync": sync, "spec": sync, "repeat": repeat, "operation_ms": 10, "minibatches_per_second": rate * (1 + repeat),
                  "simulated_minibatches_per_second": rate, **{key: value for key, value in figures.of_run(written(self.path / f"{sync}{repeat}", [1], []), 2).items()
                                                               if key != "minibatches_per_second"}}
                 for sync, rate in (("all-reduce", 10), ("partial-reduce", 29)) for repeat in range(2)]
        pages.write(self.path, lines)
        self.assertIn("| 2.90 (2.90 .. 2.90) |", (self.path / "results.md").read_text())
        self.assertIn("2.90 partial-reduce", (self.path / "rates.svg").read_text())


if __name__ == "__main__":
    unittest.main()
