#!/usr/bin/env python3
"""experiments/convergence: which cases there are, how a model is cut, the search for a rate, what samples are worth, and the table for the planner."""
import json
import math
import pathlib
import sys
import tempfile
import types
import unittest
from importlib.machinery import SourceFileLoader

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "experiments/common"), str(root / "experiments/convergence")]
sys.dont_write_bytecode = True
import cases  # noqa: E402
import report  # noqa: E402
from experiment import Failed  # noqa: E402

run = SourceFileLoader("convergence_run", str(root / "experiments/convergence/run")).load_module()
TASK = types.SimpleNamespace(name="gpt", kind="gpt", model="gpt")


def line(weights, losses, correction="none", stages=8, budgets=()):
    return {"model": "gpt", "weights": weights, "optimizer": "adamw", "delay_correction": correction, "stages": stages, "rate": 0.004, "at_end": False, "tried": [[0.002, losses[0]], [0.004, None]], "spec": "gpt", "updates": 100, "batch_size": 16,
            "losses": [[seed, loss] for seed, loss in enumerate(losses, 1)], "budgets": [[part, [[seed, loss] for seed, loss in enumerate(values, 1)]] for part, values in budgets]}


# One seed twice as far from the reference as the other.
SYNC = line("flush", [2.0, 2.1], stages=1, budgets=[(0.25, [3.0, 3.1]), (0.5, [2.5, 2.6]), (1.25, [1.9, 2.0])])
STASH = line("stash", [2.5, 2.35])
WORSE = line("2bw", [3.5, 2.1], correction="dc", stages=1)
BETTER = line("2bw", [1.0, 1.0], correction="error-feedback", stages=1)
GONE = line("predict", [None, 2.2])


class Cases(unittest.TestCase):
    def test_every_pair_that_goes_together_once(self):
        found, left_out = cases.cases_of(TASK, cases.RULES, list(cases.OPTIMIZERS), list(cases.CORRECTIONS), [8, 1], 16)
        names = [case.name for case in found]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(left_out, [])
        count = {rule: sum(case.rule == rule for case in found) for rule in cases.RULES}
        self.assertEqual(count, {"flush": 4, "stash": 8, "vertical": 8, "2bw": 12, "paci": 4, "predict": 2})
        self.assertEqual([case.rule for case in found[:4]], 4 * ["flush"])
        self.assertEqual({case.stages for case in found if case.rule in ("flush", "2bw")}, {1})

    def test_what_cannot_be_is_left_out_and_said(self):
        found, left_out = cases.cases_of(TASK, cases.RULES, ["adamw"], ["none"], [32], 16)
        self.assertEqual({case.rule for case in found}, {"flush", "2bw", "stash", "vertical", "predict"})
        self.assertEqual([(rule, count) for rule, count, _ in left_out], [("paci", 32)])

    def test_a_plan_has_each_node_once_and_as_many_products_in_each_stage(self):
        operators = ["aten::embedding", *4 * ["aten::layer_norm", "aten::linear"], "aten::cross_entropy_loss"]
        graph = {"name": "m", "parameters": [{"name": f"w{i}"} for i in range(9)],
                 "nodes": [{"name": f"n{i}", "operator": operator, "arguments": {"self": {"tensor": f"n{i - 1}"}, "weight": {"tensor": f"w{i}"}, "dim": 1}} for i, operator in enumerate(operators)]}
        plan = json.loads(cases.plan_of("m", graph, "2bw", 2, 2))
        self.assertEqual([node for stage in plan["stages"] for node in stage["nodes"]], [node["name"] for node in graph["nodes"]])
        self.assertEqual([stage["in_flight"] for stage in plan["stages"]], [2, 1])
        self.assertEqual(plan["microbatches"], 2)
        self.assertEqual([len(stage) for stage in cases.cut(graph, 4)], [4, 2, 2, 2])
        self.assertEqual([len(stage) for stage in cases.cut(graph, 9)], 8 * [1] + [2])
        with self.assertRaisesRegex(Failed, "m has 9 nodes with weights, which are at most as many stages, not 10"):
            cases.cut(graph, 10)


class Search(unittest.TestCase):
    def search(self, loss, rates=5):
        asked = []

        def kept(case, rate, seed):
            asked.append(rate)
            return loss(rate)

        found = run.searched(types.SimpleNamespace(loss=kept), cases.Case(TASK, "stash", "adamw", "none", 8), types.SimpleNamespace(rates=rates, step=2))
        return found, asked

    def test_goes_on_where_it_is_better_and_no_further(self):
        self.assertEqual(self.search(lambda rate: abs(math.log(rate / 0.002)))[1], [0.002, 0.001, 0.004])
        found, asked = self.search(lambda rate: abs(math.log(rate / 0.0005)))
        self.assertEqual((asked, found["rate"], found["at_end"]), ([0.002, 0.001, 0.0005, 0.00025], 0.0005, False))
        self.assertEqual(self.search(lambda rate: -rate)[0]["at_end"], True)

    def test_where_all_diverge_smaller_ones_are_tried(self):
        found, asked = self.search(lambda rate: None if rate > 0.0008 else rate)
        self.assertEqual((asked, found["rate"]), ([0.002, 0.001, 0.0005, 0.00025, 0.000125], 0.000125))


class Figures(unittest.TestCase):
    def test_what_samples_are_worth(self):
        points = [(1, 2.0), (0.25, 3.0), (0.5, 2.5), (1.25, 1.9)]
        self.assertAlmostEqual(report.worth(points, 2.0), 1)
        self.assertAlmostEqual(report.worth(points, 2.5), 0.5)
        self.assertAlmostEqual(report.worth(points, 2.25), math.sqrt(0.5))
        self.assertEqual(report.worth(points, 1.0), 1.25)
        self.assertIsNone(report.worth(points, 3.1))
        self.assertIsNone(report.worth(points, None))

    def test_ratios_are_of_each_seed_by_itself(self):
        self.assertEqual([round(ratio, 3) for ratio in report.ratios_of(STASH, SYNC)], [2, round(math.sqrt(2), 3)])
        self.assertEqual([round(gap, 3) for gap in report.gaps_of(STASH, SYNC)], [0.5, 0.25])

    def test_the_table_for_the_planner(self):
        rows = report.rows_of([SYNC, STASH, WORSE, BETTER, GONE], [8])
        self.assertEqual([(row["weights"], row["stages"]) for row in rows], [("flush", 1), ("flush", 8), ("stash", 8), ("2bw", 8), ("2bw", 8), ("predict", 8)])
        self.assertEqual([row["samples_ratio"] for row in rows[:2]], [1, 1])
        self.assertAlmostEqual(rows[2]["samples_ratio"], (2 + math.sqrt(2)) / 2, 3)
        self.assertEqual([row["samples_ratio"] for row in rows[3:]], [None, 0.8, None])
        self.assertEqual([row["final_loss"] for row in rows[2:]], [2.425, 2.8, 1.0, None])
        self.assertEqual(rows[2]["final_loss_spread"], 0.15)
        self.assertEqual(set(rows[0]), {"model", "weights", "optimizer", "delay_correction", "stages", "seeds", "rate", "final_loss", "final_loss_spread", "samples_ratio"})

    def test_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            simulated = [{"model": "gpt", "weights": "stash", "stages": 8, "microbatches": 1, "bandwidth": "1Gbit/s", "update_seconds": 0.036, "memory": "2 MiB"}]
            report.write(folder, [SYNC, STASH, WORSE, BETTER, GONE], simulated)
            page = (folder / "results.md").read_text()
            self.assertIn("| stash | adamw | 0.004 | 2.425 (2.350 .. 2.500) | +0.375 (+0.250 .. +0.500) | 1.71 | 36.0 ms | 6.1 s |", page)
            self.assertIn("| predict | adamw | 0.004 | diverged |", page)
            self.assertIn("| gpt | any | synchronous | adamw | 0.002: 2.000, 0.004: diverged |", page)
            self.assertEqual(json.loads((folder / "convergence.gpt.json").read_text())["schema"], "pipewright.convergence/1")
            self.assertIn("2bw + error-feedback", (folder / "gpt.adamw.p8.samples.svg").read_text())

    def test_what_simulate_prints(self):
        text = ("1-1, 64 minibatches: 6.03 ms; in the long run 93.3 us per minibatch\n\nrank  stage     busy  receive wait  in flight  peak memory   planned\n"
                "   0      0  3.44 ms       2.59 ms          2     3.75 KiB   4.5 MiB\n   1      1   2.1 ms       3.86 ms          1       800 B  2.11 KiB\n")
        seconds, memory = report.figures_of(text)
        self.assertAlmostEqual(seconds, 93.3e-6)
        self.assertEqual(memory, "3.75 KiB")


if __name__ == "__main__":
    unittest.main()
