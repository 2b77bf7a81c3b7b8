#!/usr/bin/env python3
"""Larger worlds on the simulator's clock: what planning again is worth where one rank of many is slow.

    experiments/interference/simulated.py --profile profile.json

Nothing is trained. From one measured profile pipewright-optimizer plans for so many equal ranks, prices that plan with one of them slow, and plans
again for ranks as they are then; all times are the simulator's. Of a disturbance of --during minibatches the first --found run under the old plan
(what detection takes in real runs), and the change costs --change more of them. Ranks whose speeds add up to N - 1 + 1/f could gain (f (N - 1) + 1)/N."""
import argparse
import pathlib
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "common"))
import experiment  # noqa: E402

COLUMNS = ("ranks", "slow", "times", "strategy", "planned quiet", "ms", "slowed, ms", "planned again", "ms", "gain", "of the ideal", "gain, all disturbed")


def classes(ranks, slow, factor):
    """--device-classes: `slow` of `ranks` computes `factor` times as long."""
    parts = [f"{slow}:1", f"1:{1 / factor:.9f}", f"{ranks - slow - 1}:1"]
    return ",".join(part for part in parts if not part.startswith("0:"))


class Optimizer:
    def __init__(self, options, folder):
        self.options, self.folder, self.calls = options, folder, 0

    def json(self, *words):
        """What a command says of a plan; the plan's file is beside it."""
        self.calls += 1
        file = self.folder / f"{self.calls}.json"
        links = ["--bandwidths", self.options.bandwidths, "--latency", self.options.latency]
        text = experiment.call([experiment.programs / "pipewright-optimizer", *words, "--profile", self.options.profile, *links, "--json"],
                               file.with_suffix(".log"))
        file.write_text(text)
        return experiment.json.loads(text), file


def milliseconds(plan):
    return 1000 * plan["predicted"]["minibatch_seconds"]


def shape(plan):
    return "-".join(str(len(stage["ranks"])) for stage in plan["stages"])


def row(optimizer, ranks, slow, factor, strategy):
    options = optimizer.options
    quiet, file = optimizer.json("plan", "--gpus", ranks, "--strategy", strategy)
    speeds = ["--gpus", ranks, "--device-classes", classes(ranks, slow, factor)]
    slowed, _ = optimizer.json("evaluate", "--plan", file, *speeds)
    again, _ = optimizer.json("plan", *speeds, "--strategy", strategy)
    # The plan that is there is a candidate too, as it is in a run.
    best = min(slowed, again, key=milliseconds)
    gain = milliseconds(slowed) / milliseconds(best)
    ideal = (factor * (ranks - 1) + 1) / ranks
    old = options.found + (options.change if best is again else 0)
    during = options.during * milliseconds(slowed) / (old * milliseconds(slowed) + (options.during - options.found) * milliseconds(best))
    return (ranks, slow, f"{factor:g}", strategy, shape(quiet), f"{milliseconds(quiet):.3g}", f"{milliseconds(slowed):.3g}",
            shape(best) if best is again else "as before", f"{milliseconds(best):.3g}", f"{gain:.2f}", f"{gain / ideal:.2f}", f"{during:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--profile", required=True, help="profile.json of the model")
    add("--ranks", default="2,4,8,16")
    add("--slowdown", default="2,3", help="times as long as the slow rank computes")
    add("--strategy", default="straight,best", help="of both plans")
    add("--bandwidths", default="4GB/s")
    add("--latency", default="50us")
    add("--during", type=int, default=240, help="disturbed minibatches")
    add("--found", type=int, default=20, help="of these run before the change")
    add("--change", type=float, default=5, help="minibatches that it costs")
    options = parser.parse_args()
    print(f"Simulated, from {options.profile}; nothing was trained.\n")
    print("| " + " | ".join(COLUMNS) + " |\n| " + " | ".join("---" for _ in COLUMNS) + " |")
    with tempfile.TemporaryDirectory() as folder:
        optimizer = Optimizer(options, pathlib.Path(folder))
        for strategy in options.strategy.split(","):
            for ranks in map(int, options.ranks.split(",")):
                for factor in map(float, options.slowdown.split(",")):
                    for slow in sorted({0, ranks // 2, ranks - 1}):
                        try:
                            cells = row(optimizer, ranks, slow, factor, strategy)
                        except experiment.Failed as failure:
                            sys.exit(f"{ranks} ranks, {strategy}: {failure}")
                        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
