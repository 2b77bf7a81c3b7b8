#!/usr/bin/env python3
"""Schedules in the CSV of PyTorch, with PyTorch: those of plans run by its runtime, and its own ones read, simulated and run here.

    torch_schedules_test.py BIN_DIR

Without torch it prints SKIPPED: and its reason. It writes into a temporary folder only.
"""
import csv
import importlib.util
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# The processes that train import this file, too, and start no program.
PROGRAMS = os.path.abspath(sys.argv.pop(1)) if __name__ == "__main__" else ""
if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this Python has no torch; scripts/test --with-pytorch makes one that has")
    sys.exit()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import pipelining  # noqa: E402
from torch.distributed.pipelining import schedules  # noqa: E402

RANKS, WIDTH, SAMPLES = 2, 8, 4
MODEL = "mlp:layers=8,width=8,image=8,channels=1"
FLUSHED = ("gpipe", "1f1b-flush", "zb-h1", "interleaved", "zbv", "dualpipev")


def run(*words):
    done = subprocess.run([os.path.join(PROGRAMS, words[0]), *words[1:]], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def optimizer(*words):
    return run("pipewright-optimizer", *words)


def profile():
    """Of eight layers that could be anything."""
    nodes = [{"name": f"node{i}", "layer": str(i), "inputs": [f"value{i - 1}" if i else "images"], "outputs": [{"name": f"value{i}", "bytes": 256}],
              "forward_seconds": 0.001, "backward_input_seconds": 0.001, "backward_weight_seconds": 0.001, "spread": 0, "saved_bytes": 256,
              "parameter_bytes": 256, "trainable_parameter_bytes": 256, "buffer_bytes": 0, "parameters": [f"{i}.weight"]} for i in range(8)]
    return {"schema": "pipewright.profile/1", "model": "some", "graph_digest": "", "minibatch_samples": SAMPLES, "device": "cpu", "threads": 1,
            "provenance": {}, "input_seconds": 0, "nodes": nodes,
            "whole": {"forward_seconds": 0.008, "backward_seconds": 0.016, "step_seconds": 0.001}}


def plan(schedule, microbatches, ranks):
    """`ranks`: of each stage."""
    each = 8 // len(ranks)
    return {"schema": "pipewright.plan/1", "model": "some", "strategy": "manual", "schedule": schedule, "weights": "flush", "microbatches": microbatches,
            "world_size": max(ranks) + 1,
            "stages": [{"nodes": [f"node{i}" for i in range(s * each, (s + 1) * each)], "ranks": [rank], "in_flight": 64} for s, rank in enumerate(ranks)]}


def ranks_of(schedule):
    return {"interleaved": [0, 1, 0, 1], "zbv": [0, 1, 1, 0], "dualpipev": [0, 1, 1, 0]}.get(schedule, [0, 1])


def layers(stages):
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]


def data(microbatches):
    torch.manual_seed(11)
    return torch.randn(SAMPLES * microbatches, WIDTH), torch.randn(SAMPLES * microbatches, WIDTH)


def gradients_of_one_process(stages, microbatches):
    model = nn.Sequential(*layers(stages))
    inputs, targets = data(microbatches)
    for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        (nn.functional.mse_loss(model(x), y) / microbatches).backward()
    return [[parameter.grad for parameter in stage.parameters()] for stage in model]


def train_by_csv(rank, folder, cases, results):
    """One of RANKS processes: every case by PyTorch's runtime; puts (case, stage, gradients)."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for case, (file, stages, own, microbatches) in enumerate(cases):
        modules = layers(stages)
        parts = [pipelining.PipelineStage(modules[s], s, stages, torch.device("cpu")) for s in own[rank]]
        for part in parts:  # first messages, for NCCL; in a V also to the rank itself, which Gloo has not
            part._get_init_p2p_neighbors_ops = list
        schedule = schedules._PipelineScheduleRuntime(parts, microbatches, loss_fn=nn.functional.mse_loss)
        schedule._load_csv(file)
        inputs, targets = data(microbatches)
        schedule.step(*([inputs] if 0 in own[rank] else []), target=targets if stages - 1 in own[rank] else None)
        for s in own[rank]:
            results.put((case, s, [parameter.grad.tolist() for parameter in modules[s].parameters()]))
    dist.barrier()
    dist.destroy_process_group()


class Mock:
    """What PyTorch's schedules ask of a stage while they are made."""

    def __init__(self, stage, rank, stages, ranks):
        self.stage_index, self.group_rank, self.num_stages, self.group_size = stage, rank, stages, ranks
        self.submod, self.stage_index_to_group_rank = None, None
        self.is_first, self.is_last = stage == 0, stage == stages - 1


def rows_of_torch(name, ranks, microbatches, form):
    """PyTorch's schedule, written by PyTorch."""
    kind = schedules.get_schedule_class(name)
    file = f"{name}-{ranks}-{microbatches}-{form}.csv"
    if issubclass(kind, schedules.PipelineScheduleSingle):
        orders = kind(Mock(0, 0, ranks, ranks), microbatches).pipeline_order
        if name == "1F1B":
            # torch 2.11 counts the last rank's forwards from 1 in this drawing, which its 1F1B does not run by.
            forwards = [action for action in orders[ranks - 1] if action is not None and action.computation_type == schedules.FORWARD]
            off = forwards[0].microbatch_index
            orders[ranks - 1] = [action._replace(microbatch_index=action.microbatch_index - off) if action in forwards else action
                                 for action in orders[ranks - 1]]
        with open(file, "w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows(orders[rank] for rank in range(ranks))
        return file, ranks
    stages = 2 * ranks
    own = (0, stages - 1) if name in ("ZBVZeroBubble", "DualPipeV") else (0, ranks)
    kind([Mock(stage, 0, stages, ranks) for stage in own], microbatches)._dump_csv(file, format=form)
    return file, stages


class TorchSchedules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        pathlib.Path("profile.json").write_text(json.dumps(profile()))

    def write_plan(self, *arguments):
        file = "-".join(str(a) for a in arguments[:2]) + ".json"
        pathlib.Path(file).write_text(json.dumps(plan(*arguments)))
        return file

    def test_plans_are_trained_by_the_runtime_of_pytorch(self):
        cases, names = [], []
        for schedule in FLUSHED:
            for microbatches in (1, 4, 7):
                ranks = ranks_of(schedule)
                file = self.write_plan(schedule, microbatches, ranks)
                optimizer("convert", "--input", file, "--to", "torch-csv", "--output", file + ".csv")
                own = [[s for s, rank in enumerate(ranks) if rank == r] for r in range(RANKS)]
                cases.append((os.path.abspath(file + ".csv"), len(ranks), own, microbatches))
                names.append(file)
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        processes = [context.Process(target=train_by_csv, args=(r, os.getcwd(), cases, results)) for r in range(RANKS)]
        for process in processes:
            process.start()
        expected = sum(stages for _, stages, _, _ in cases)
        got = {}
        while len(got) < expected:
            if results.empty() and not all(p.is_alive() or p.exitcode == 0 for p in processes):
                break
            if not results.empty():
                case, stage, gradients = results.get()
                got[case, stage] = gradients
        for process in processes:
            process.join()
            self.assertEqual(process.exitcode, 0)
        for case, (_, stages, _, microbatches) in enumerate(cases):
            for stage, wanted in enumerate(gradients_of_one_process(stages, microbatches)):
                for mine, one in zip(got[case, stage], wanted, strict=True):
                    torch.testing.assert_close(torch.tensor(mine), one, msg=lambda text, name=names[case]: f"{name}: {text}")

    def test_schedules_of_pytorch_are_read_and_simulated(self):
        for name in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
            for ranks, microbatches in ((2, 4), (4, 8), (4, 12)):
                for form in ("compute_only", "compute_comms"):
                    with self.subTest(name=name, ranks=ranks, microbatches=microbatches, form=form):
                        file, stages = rows_of_torch(name, ranks, microbatches, form)
                        loop = [s % ranks for s in range(stages)]
                        stages_of = self.write_plan("interleaved" if stages > ranks else "gpipe", stages, loop)
                        optimizer("convert", "--input", file, "--plan", stages_of, "--output", "theirs.json")
                        optimizer("check", "--plan", "theirs.json", "--profile", "profile.json")
                        told = optimizer("simulate", "--plan", "theirs.json", "--profile", "profile.json", "--minibatches", str(microbatches))
                        self.assertIn(f"{microbatches} minibatches", told)
                        optimizer("convert", "--input", "theirs.json", "--to", "torch-csv", "--output", "back.csv")
                        self.assertEqual(len(pathlib.Path("back.csv").read_text().splitlines()), ranks)

    def test_the_orders_of_zbv_and_dualpipev_are_those_of_pytorch(self):
        for schedule, name in (("zbv", "ZBVZeroBubble"), ("dualpipev", "DualPipeV")):
            for ranks, microbatches in ((2, 4), (4, 8), (4, 11)):
                with self.subTest(schedule=schedule, ranks=ranks, microbatches=microbatches):
                    theirs, stages = rows_of_torch(name, ranks, microbatches, "compute_only")
                    file = self.write_plan(schedule, microbatches, [min(s, stages - 1 - s) for s in range(stages)])
                    optimizer("convert", "--input", file, "--to", "torch-csv", "--output", "ours.csv")
                    optimizer("convert", "--input", theirs, "--plan", file, "--output", "theirs.json")
                    optimizer("convert", "--input", "theirs.json", "--to", "torch-csv", "--output", "theirs.csv")
                    self.assertEqual(pathlib.Path("ours.csv").read_text(), pathlib.Path("theirs.csv").read_text())

    def test_a_schedule_of_pytorch_trains_here(self):
        run("pipewright-profiler", "--model", MODEL, "--batch-size", "4", "--repeats", "3", "--output", "mlp.json")
        for name, planned in (("1F1B", "1f1b-flush"), ("ZBVZeroBubble", "zbv"), ("DualPipeV", "dualpipev")):
            with self.subTest(name=name):
                file, _ = rows_of_torch(name, RANKS, 4, "compute_only")
                optimizer("plan", "--profile", "mlp.json", "--gpus", str(RANKS), "--schedule", planned, "--microbatches", "4", "--use-all-devices",
                          "--output", "stages.json", *(["--strategy", "straight"] if planned == "1f1b-flush" else []))
                optimizer("convert", "--input", file, "--plan", "stages.json", "--output", "theirs.json")
                for document in ("stages.json", "theirs.json"):
                    told = run("pipewright-runtime", "verify", "--model", MODEL, "--data", "synthetic-images:image=8,channels=1,samples=64", "--batch-size", "4",
                               "--plan", document, "--minibatches", "10")
                    self.assertIn("equal", told)


if __name__ == "__main__":
    unittest.main()
