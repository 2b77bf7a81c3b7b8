#!/usr/bin/env python3
"""experiments/interference: its figures, of a run whose times are known."""
import json
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "experiments/interference"))
import figures  # noqa: E402
import pages  # noqa: E402

COME, GO, END = 100, 200, 300


def written(folder, period, lines=()):
    """A run folder: minibatch k ends period(k) seconds after the one before."""
    folder.mkdir()
    elapsed, out = 0.0, []
    for k in range(END):
        elapsed += period(k)
        out.append({"minibatch": k, "loss": 1.0, "elapsed_seconds": elapsed})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*out[:150], *lines, *out[150:]]))
    used = {"seconds": 4.0, "cpu_seconds": 3.0}
    (folder / "hogs.jsonl").write_text(json.dumps({"event": "come", "last_minibatch": COME - 1}) + "\n" +
                                       json.dumps({"event": "go", "last_minibatch": GO - 1, "used": used}) + "\n")
    return folder


def generation(number, first, reason):
    return {"generation": {"number": number, "first_minibatch": first, "plan": f"generation-{number}.plan.json", "reason": reason, "moved_bytes": 10,
                           "drain_seconds": 0.03, "move_seconds": 0.04, "start_seconds": 0.01}}


class Figures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = pathlib.Path(self.folder.name)
        disturbed = range(COME, GO)
        self.none = figures.of_run(written(path / "none", lambda k: 0.03 if k in disturbed else 0.01), 1)
        # Follows at minibatch 120 with 50 ms between, and goes back at 220.
        lines = [{"speed": {"rank": 0, "found": 105, "slowdown": 1.3}}, {"speed": {"rank": 1, "found": 40, "slowdown": 1.2}},
                 {"speed": {"rank": 1, "found": 110, "slowdown": 3.0}}, generation(0, 0, ""), generation(1, 120, "slow"), generation(2, 220, "quiet")]
        self.followed = figures.of_run(
            written(path / "followed", lambda k: (0.05 if k == 120 else 0) + (0.03 if COME <= k < 120 else 0.015 if 120 <= k < 220 else 0.01), lines), 1)

    def test_times_are_those_of_the_phases(self):
        for figure, seconds in (("before_seconds", 0.01), ("settled_seconds", 0.015), ("after_seconds", 0.01),
                                ("during_seconds", (20 * 0.03 + 80 * 0.015 + 0.05) / 100)):
            self.assertAlmostEqual(self.followed[figure], seconds, msg=figure)
        self.assertAlmostEqual(self.none["total_seconds"], 200 * 0.01 + 100 * 0.03)
        self.assertAlmostEqual(self.none["hogs_cpu_share"], 0.75)

    def test_minibatches_of_replicas_that_end_together_have_the_pace_of_their_rounds(self):
        # Of two that take turns the second ends before the first.
        path = pathlib.Path(self.folder.name)
        pairs = figures.of_run(written(path / "pairs", lambda k: 0.30 if k % 2 == 0 else -0.06), 1)
        for figure in ("before_seconds", "settled_seconds", "after_seconds"):
            self.assertAlmostEqual(pairs[figure], 0.12, msg=figure)

    def test_the_slow_rank_is_found_once_it_is_slow_and_not_another(self):
        self.assertEqual(self.followed["detection"]["minibatches"], 10)
        self.assertAlmostEqual(self.followed["detection"]["seconds"], 11 * 0.03)
        self.assertIsNone(self.none["detection"])

    def test_a_change_has_its_pause_and_the_gap_that_losses_show(self):
        first, second = self.followed["changes"]
        self.assertEqual((first["first_minibatch"], second["first_minibatch"]), (120, 220))
        self.assertAlmostEqual(first["pause_seconds"], 0.05)
        # From minibatch 117 to 122 where five would have taken 5 x 30 ms.
        self.assertAlmostEqual(first["gap_seconds"], 2 * 0.03 + 3 * 0.015 + 0.05 - 5 * 0.03)
        self.assertEqual(self.followed["changes_before"], 0)

    def test_gains_are_against_the_run_without_changes(self):
        ratios = figures.against_none(self.followed, self.none)
        self.assertAlmostEqual(ratios["slowdown"], 3)
        self.assertAlmostEqual(ratios["gain"], 2)
        self.assertAlmostEqual(ratios["ideal"], 2)
        self.assertAlmostEqual(ratios["of_ideal"], 1)
        self.assertAlmostEqual(ratios["net"], self.none["total_seconds"] / self.followed["total_seconds"])

    def test_the_page_has_a_row_for_each_case_and_policy(self):
        shared = {"model": "m", "spec": "mlp", "batch_size": 4, "load": "heavy", "processes": 2, "kind": "matrix", "stage": 1, "come": COME,
                  "minibatches": END, "epoch_minibatches": 50, "status": "done"}
        lines = [{**shared, **run, "policy": policy, "repeat": repeat} for repeat in (0, 1)
                 for policy, run in (("none", self.none), ("measured", self.followed))]
        rows = [line for line in pages.markdown(lines).splitlines() if line.startswith("| heavy")]
        self.assertEqual(len(rows), 2)
        self.assertIn("| measured | 10 ms (10 ms .. 10 ms) | 15 ms (15 ms .. 15 ms) |", rows[1])
        self.assertIn("| 120, 220; 120, 220 |", rows[1])

    def test_each_case_has_its_drawings_of_all_policies(self):
        shared = {"model": "m", "spec": "mlp", "batch_size": 4, "load": "heavy", "processes": 2, "kind": "matrix", "stage": 1, "come": COME,
                  "minibatches": END, "epoch_minibatches": 50, "status": "done", "repeat": 0}
        path = pathlib.Path(self.folder.name)
        lines = []
        # Many minibatches end together where the last stage has replicas.
        turns = figures.of_run(written(path / "turns", lambda k: 0.04 if k % 4 == 0 else 0.0), 1)
        for name, policy, run in (("none", "none", self.none), ("followed", "predict", self.followed), ("turns", "naive", turns)):
            (path / name / "summary.json").write_text(json.dumps({"ranks": [{"busy_fraction": 0.5}, {"busy_fraction": 0.9}]}))
            lines.append({**shared, **run, "policy": policy, "run": str(path / name)})
        pages.write(path, lines)
        for name in ("trace.m.heavy.matrix.stage=1", "loss.m.heavy.matrix.stage=1", "throughput.m", "iteration.m", "utilisation.m"):
            drawing = (path / f"{name}.svg").read_text()
            self.assertIn(f"({name}.svg)", (path / "results.md").read_text())
            for policy in ("none", "predict", "naive"):
                self.assertIn(policy, drawing, name)
        # 4 samples in 30 and in 15 ms; half and nine tenths of the time.
        self.assertIn(">133<", (path / "throughput.m.svg").read_text())
        self.assertIn(">267<", (path / "throughput.m.svg").read_text())
        self.assertIn(">70<", (path / "utilisation.m.svg").read_text())


if __name__ == "__main__":
    unittest.main()
