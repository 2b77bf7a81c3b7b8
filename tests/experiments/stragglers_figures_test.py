#!/usr/bin/env python3
"""experiments/stragglers: its figures, of runs whose groups and times are known."""
import json
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "experiments/stragglers"))
import figures  # noqa: E402
import pages  # noqa: E402


def written(folder, losses, groups, accuracy):
    folder.mkdir()
    ranks = [{"stage": stage, "replica": replica, "sync_wait_seconds": 1.0, "times": {"trained_seconds": 10.0, "minibatches": 100 if replica else 20}}
             for stage in range(2) for replica in range(2)]
    summary = {"minibatches": 120, "ranks": ranks, "evaluation": {"top1": accuracy}}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"minibatch": k, "loss": loss, "elapsed_seconds": 0.5 * k}) + "\n" for k, loss in enumerate(losses)))
    lines = [{"first_minibatch": 0}, {"generation": 0, "span": 0, "pipeline": 1, "minibatches": [0, 1]}]
    lines += [{"generation": 0, "stage": stage, "group": group} for stage, group in groups]
    (folder / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def test_windows(self):
        self.assertEqual(figures.longest_window([[0, 1], [0, 1]], 2), (2, 2))
        self.assertEqual(figures.longest_window([[0], [1], [0], [0, 1], [0, 1]], 2), (5, 2))
        self.assertEqual(figures.longest_window([[0, 1], [0, 1], [1, 2]], 3), (6, 1))  # by way of 1
        self.assertEqual(figures.longest_window([[0, 1]] * 9, 3), (0, 0))

    def test_run(self):
        folder = written(self.path / "run", [1.0] * 10, [(0, [0, 1]), (0, [0]), (0, [1]), (0, [0, 1]), (1, [0, 1])], 0.5)
        run = figures.of_run(folder, 2)
        self.assertEqual(run["minibatches_per_second"], 12)
        self.assertEqual(run["group_sizes"], {1: 2, 2: 3})
        self.assertEqual(run["longest_window_updates_per_pipeline"], 2)
        self.assertEqual(run["minibatches_by_pipeline"], [20, 100])
        self.assertAlmostEqual(run["sync_wait_fraction"], 0.1)

    def test_time_to_a_loss(self):
        self.assertEqual(figures.smoothed([4, 2, 0, 4], 2), [3, 1, 2])
        lines = []
        for sync, steps in (("all-reduce", 1), ("partial-reduce", 2)):
            folder = written(self.path / sync, [1 / (1 + steps * k) for k in range(400)], [], 0.8 if steps == 1 else 0.79)
            lines.append({"case": "learn", "sync": sync, "repeat": 0, "run": str(folder), "minibatches": 2, "accuracy": figures.accuracy(folder),
                          "pipelines": 2, "operation_ms": 10})
        row = pages.learned(lines)[0]
        self.assertEqual(row["seconds"]["all-reduce"], 0.5 * 399)
        self.assertTrue(0.5 <= row["seconds"]["partial-reduce"] / row["seconds"]["all-reduce"] < 0.7)
        text = "\n".join(pages.learned_table([row]))
        self.assertIn("-1.00 points", text)
        pages.write(self.path, lines)
        self.assertIn("partial-reduce", (self.path / "loss.svg").read_text())


if __name__ == "__main__":
    unittest.main()
