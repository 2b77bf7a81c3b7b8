"""PyTorch's side of the matrix: the same models, minibatches and hyperparameters on as many processes. Prints a line of JSON with the keys of results.jsonl.

    python peers.py FRAMEWORK SPEC --batch-size N --microbatches M --minibatches K --ranks R --learning-rate X --momentum X --weight-decay X --device cpu

FRAMEWORK: eager, ddp, gpipe, 1f1b (torch.distributed.pipelining). A pipeline is cut where measured layers balance best. Images and labels are random numbers in memory, so losses
say only that it trains. One compute thread a rank, a core a rank as long as there are cores."""
import argparse
import json
import os
import queue
import resource
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from peer_models import layers_of, parameters

PIPELINES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
WARM_UP = 2  # steps that are not measured


def loopback_bytes():
    """What all of this machine has sent to itself over TCP."""
    try:
        with open("/sys/class/net/lo/statistics/tx_bytes") as file:
            return int(file.read())
    except OSError:
        return None


def layer_seconds(layers, images):
    """Forward and backward of each, the least of three."""
    result, x = [], images
    for layer in layers:
        times = []
        for _ in range(3):
            given = x.detach().requires_grad_()
            begin = time.perf_counter()
            made = layer(given)
            made.backward(torch.ones_like(made))
            times.append(time.perf_counter() - begin)
        layer.zero_grad(set_to_none=True)
        result.append(min(times))
        x = made.detach()
    return result


def balanced(times, stages):
    """First layers of the stages, and the end: the slowest stage as fast as can be."""
    count = len(times)
    best = {(0, 0): (0.0, [0])}  # (stages, layers): slowest stage, bounds
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            best[stage, end] = min((max(best[stage - 1, begin][0], sum(times[begin:end])), [*best[stage - 1, begin][1], end])
                                   for begin in range(stage - 1, end) if (stage - 1, begin) in best)
    return best[stages, count][1]


class Trainer:
    """One rank. `step` trains one update, of `minibatches_of_step` minibatches over all ranks; a loss where there is one."""

    def __init__(self, rank, options):
        layers, shape, classes = layers_of(options.spec)
        self.parameter_count = parameters(layers)
        device = torch.device(options.device if options.device == "cpu" else f"cuda:{rank}")
        pipeline = options.framework in PIPELINES
        samples = options.batch_size * (options.microbatches if pipeline else 1)
        self.minibatches_of_step = options.microbatches if pipeline else options.ranks if options.framework == "ddp" else 1
        x, labels = torch.randn(samples, *shape, device=device), torch.randint(0, classes, (samples,), device=device)
        loss_of, self.stages = nn.functional.cross_entropy, None
        if pipeline:
            import torch.distributed.pipelining as pipelining
            bounds = [balanced(layer_seconds(layers, x[:options.batch_size].cpu()), options.ranks)] if rank == 0 else [None]
            dist.broadcast_object_list(bounds)
            self.stages = bounds[0]
            net = nn.Sequential(*layers[self.stages[rank]:self.stages[rank + 1]]).to(device)
            schedule = getattr(pipelining, PIPELINES[options.framework])(pipelining.PipelineStage(net, rank, options.ranks, device), options.microbatches, loss_fn=loss_of)
            first, last = rank == 0, rank == options.ranks - 1

            def run():
                losses = []
                schedule.step(*([x] if first else []), **({"target": labels, "losses": losses} if last else {}))
                return sum(float(loss.detach()) for loss in losses) / len(losses) if losses else None
        else:
            net = nn.Sequential(*layers).to(device)
            if options.framework == "ddp":
                net = nn.parallel.DistributedDataParallel(net)

            def run():
                loss = loss_of(net(x), labels)
                loss.backward()
                return float(loss.detach())
        self.run = run
        self.optimizer = torch.optim.SGD(net.parameters(), lr=options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.run()
        self.optimizer.step()
        return loss


def measure(rank, options, port, results):
    cores = sorted(os.sched_getaffinity(0))
    if options.device == "cpu":
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        torch.set_num_threads(1)
    alone = options.framework == "eager"
    if not alone:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo" if options.device == "cpu" else "nccl", rank=rank, world_size=options.ranks)
    trainer = Trainer(rank, options)
    steps = max(3, options.minibatches // trainer.minibatches_of_step)
    losses, times = [trainer.step() for _ in range(WARM_UP)], []
    if not alone:
        dist.barrier()
    begin, begin_compute, begin_bytes = time.perf_counter(), time.thread_time(), loopback_bytes()
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(trainer.step())
        times.append(time.perf_counter() - start)
    compute = time.thread_time() - begin_compute
    if not alone:
        dist.barrier()
    seconds, sent = time.perf_counter() - begin, loopback_bytes()
    results.put({"rank": rank, "seconds": seconds, "step_seconds": statistics.median(times), "bubble": max(0.0, 1 - compute / seconds) if options.device == "cpu" else None,
                 "sent": sent - begin_bytes if sent is not None and options.device == "cpu" else None, "losses": [loss for loss in losses if loss is not None],
                 "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "tensors": torch.cuda.max_memory_allocated() if options.device != "cpu" else None,
                 "parameters": trainer.parameter_count, "stages": trainer.stages, "minibatches": steps * trainer.minibatches_of_step, "of_step": trainer.minibatches_of_step})
    if not alone:
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("eager", "ddp", *PIPELINES))
    parser.add_argument("spec")
    for name in ("batch-size", "microbatches", "minibatches", "ranks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("learning-rate", "momentum", "weight-decay"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    results = mp.get_context("spawn").Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if options.framework == "eager":
        options.ranks = 1
        measure(0, options, port, results)
        ranks = [results.get()]
    else:
        context = mp.spawn(measure, (options, port, results), options.ranks, join=False)
        ranks = []
        while len(ranks) < options.ranks:
            try:
                ranks.append(results.get(timeout=1))
            except queue.Empty:
                context.join(timeout=0)  # raises what a rank has died of
        while not context.join():
            pass
    ranks.sort(key=lambda rank: rank["rank"])
    minibatch = max(rank["step_seconds"] for rank in ranks) / ranks[0]["of_step"]
    losses = ranks[-1]["losses"]
    print(json.dumps({
        "samples_per_second": options.batch_size / minibatch, "minibatch_seconds": minibatch, "minibatches": ranks[0]["minibatches"],
        "bubble": None if ranks[0]["bubble"] is None else sum(rank["bubble"] for rank in ranks) / len(ranks),
        "sent_bytes_per_minibatch": None if ranks[0]["sent"] is None else ranks[0]["sent"] / ranks[0]["minibatches"],
        "peak_memory_bytes": None if ranks[0]["tensors"] is None else [rank["tensors"] for rank in ranks], "peak_resident_bytes": [rank["resident"] for rank in ranks],
        "first_loss": losses[0], "last_loss": losses[-1], "parameters": ranks[0]["parameters"], "cut_before_layers": ranks[0]["stages"] and ranks[0]["stages"][1:-1]}))


if __name__ == "__main__":
    main()
