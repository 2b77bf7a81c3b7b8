#!/usr/bin/env python3
"""Freezing on the simulator's clock: what a run would take whose first layers freeze, epoch by epoch.

Nothing is trained. Every epoch is priced by pipewright-optimizer from one measured profile, under four switches
that come on one after the other (freeze, pipe, dp, cache) and for several alpha; the shares of time are those
of the simulator, not of a machine. Loading data, filling the cache and changing plans cost nothing here.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

from bars import bars

BINARY = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "pipewright-optimizer"
ALPHAS = ["1/5", "1/4", "1/3", "2/5", "1/2"]
MODES = [  # name, switches
    ("no freezing", set()),
    ("freeze", {"freeze"}),
    ("+ pipe", {"freeze", "pipe"}),
    ("+ pipe + cache", {"freeze", "pipe", "cache"}),
    ("+ pipe + dp", {"freeze", "pipe", "dp"}),
    ("+ pipe + dp + cache", {"freeze", "pipe", "dp", "cache"}),
]


def frozen_layers(layers, alpha, epoch):
    """ceil(L (1 - (1 - alpha)^T)), as `--adapt freeze:rule=alpha` has it."""
    return math.ceil(layers * (1 - (1 - Fraction(alpha)) ** epoch))


class Optimizer:
    def __init__(self, args, folder):
        self.args, self.folder, self.known = args, folder, {}

    def plan(self, words):
        """The document that these words lead to; asked once."""
        key = tuple(words)
        if key not in self.known:
            links = ["--bandwidths", self.args.bandwidths, "--latency", self.args.latency]
            command = [str(self.args.optimizer), *words, "--profile", self.args.profile, *links, "--json"]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                sys.exit(f"{' '.join(command)}\n{result.stderr}")
            self.known[key] = json.loads(result.stdout)
        return self.known[key]

    def whole(self):
        """The pipeline that training begins with: one rank a stage."""
        return self.plan(["plan", "--gpus", str(self.args.ranks), "--strategy", "straight", "--use-all-devices",
                          *self.rule()])

    def rule(self):
        return ["--schedule", self.args.schedule] if self.args.schedule else []

    def kept(self, layers):
        """The same pipeline with so many layers frozen."""
        if layers == 0:
            return self.whole()
        document = dict(self.whole(), frozen_layers=layers)
        document.pop("predicted")
        file = self.folder / f"kept-{layers}.json"
        file.write_text(json.dumps(document))
        return self.plan(["evaluate", "--plan", str(file)])

    def again(self, layers, switches):
        """The best plan for what is left to train: a pipeline of fewer ranks, or replicas too."""
        words = ["plan", "--gpus", str(self.args.ranks), *self.rule(), "--frozen-layers", str(layers)]
        if "cache" in switches:
            words.append("--cached")
        if "dp" not in switches:
            # As many ranks as there are layers left to share out, and one device at the end.
            straight = self.plan([*words, "--strategy", "straight"])
            alone = self.plan([*words, "--replicas", "0:1", "--max-stages", "1"])
            return min(straight, alone, key=seconds)
        return self.plan(words)


def seconds(plan):
    return plan["predicted"]["minibatch_seconds"]


def shape(plan):
    return "-".join(str(len(stage["ranks"])) for stage in plan["stages"])


def epochs_of(optimizer, args, alpha, switches):
    """(frozen layers, shape, seconds) by epoch."""
    rows, plan = [], optimizer.whole()
    for epoch in range(args.epochs):
        layers = frozen_layers(args.layers, alpha, epoch) if "freeze" in switches else 0
        kept = optimizer.kept(layers)
        plan = kept
        if layers > 0 and switches & {"pipe", "dp"}:
            plan = min(kept, optimizer.again(layers, switches), key=seconds)
        rows.append((layers, shape(plan), seconds(plan) * args.minibatches))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, help="profile.json of the model")
    parser.add_argument("--layers", type=int, required=True, help="layers of the model that freezing counts")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bandwidths", default="10Gbit/s")
    parser.add_argument("--latency", default="50us")
    parser.add_argument("--schedule", default="", help="of all plans; without: the optimizer's")
    parser.add_argument("--alpha", default="1/3", help="of the ablation")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatches", type=int, default=1000, help="of an epoch")
    parser.add_argument("--output", type=Path, help="folder for the bars, as SVG")
    parser.add_argument("--optimizer", type=Path, default=BINARY)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        optimizer = Optimizer(args, Path(folder))
        base = sum(row[2] for row in epochs_of(optimizer, args, args.alpha, set()))
        print(f"Simulated, from {args.profile}: {args.ranks} ranks, {args.epochs} epochs of {args.minibatches} "
              f"minibatches, alpha {args.alpha}\n")
        ablation = []
        for name, switches in MODES:
            rows = epochs_of(optimizer, args, args.alpha, switches)
            total = sum(row[2] for row in rows)
            ablation.append((name, base / total))
            print(f"{name:20} {total:10.1f} s  {base / total:5.2f} times  "
                  + " ".join(f"{layers}:{text}" for layers, text, _ in rows))
        print("\nalpha, everything on")
        sweep = []
        for alpha in ALPHAS:
            total = sum(row[2] for row in epochs_of(optimizer, args, alpha, MODES[-1][1]))
            sweep.append((f"alpha {alpha}", base / total))
            print(f"{alpha:20} {total:10.1f} s  {base / total:5.2f} times")
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "ablation.svg").write_text(bars("Simulated speed-up, by what is switched on", ablation))
        (args.output / "alpha.svg").write_text(bars("Simulated speed-up, everything on", sweep))


if __name__ == "__main__":
    main()
