#!/usr/bin/env python3
"""experiments/dp_vs_hybrid/crossover: who wins, whom the planner chose, and what that costs."""
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "experiments/common"), str(root / "experiments/dp_vs_hybrid")]
import crossings  # noqa: E402


def line(link, strategy, plan, predicted, measured=None, status="done", **more):
    known = {"measured_seconds": measured, "cores": 2} if measured else {}
    return {"model": "m", "link": link, "ranks": 2, "strategy": strategy, "plan": plan, "batch_size": 8, "predicted_seconds": predicted, "status": status, **known, **more}


LINES = [line("shm", "one device", "1", 0.4, 0.4), line("shm", "dp", "2", 0.2, 0.2), line("shm", "straight", "1-1", 0.25, 0.16),
         line("200mbit", "dp", "2", 5, status="skipped", reason="too long"), line("200mbit", "straight", "1-1", 0.25, 0.32),
         {"model": "m", "link": "1gbit", "ranks": 2, "strategy": "dp", "batch_size": 8, "status": "unavailable", "reason": "not root"}]


class Crossings(unittest.TestCase):
    def test_rows(self):
        rows = crossings.rows(crossings.questions(LINES))
        self.assertEqual([row[2] for row in rows], ["shm", "1gbit", "200mbit"])
        self.assertEqual(rows[0][3:], ["20 (20)", "40 (40)", "1-1: 50 (32)", "-", "straight", "dp", "25 %"])
        self.assertEqual(rows[1][3], "skipped: not root")
        self.assertEqual(rows[2][3:], ["-", "skipped (1.6)", "1-1: 25 (32)", "-", "straight", "straight", "0 %"])

    def test_gains_and_pages(self):
        found = crossings.questions(LINES)
        self.assertEqual(crossings.gains(found, 2, "measured_seconds"), {"m": [(16.0, 0.2 / 0.16)]})
        self.assertEqual([points[1] for points in crossings.gains(found, 2, "predicted_seconds")["m"]], [20, 0.8])
        with tempfile.TemporaryDirectory() as folder:
            crossings.write(pathlib.Path(folder), LINES)
            self.assertIn("<svg", (pathlib.Path(folder) / "crossover_2.svg").read_text())


if __name__ == "__main__":
    unittest.main()
