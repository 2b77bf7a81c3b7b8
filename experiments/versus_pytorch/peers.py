"""PyTorch's side of the comparison, on pinned cores with one thread a rank. Prints one line of JSON.

    python peers.py MODE WORKLOAD [MICROBATCHES]

MODE: eager (one core), independent (two processes that know nothing of each other), ddp, gpipe, 1f1b, interleaved (two
stages a rank). Plain SGD, data in memory; the second stage begins where ours does."""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from models import WORKLOADS, loss_of, workload

WARM_UP_SECONDS, MEASURED_SECONDS, PARTS = 1.0, float(os.environ.get("VERSUS_SECONDS", 4)), 5


def schedule_of(mode, rank, layers, cut, microbatches):
    """The parameters of this rank's stages, and a function that runs one minibatch through the pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
    if mode == "interleaved":
        bounds, mine = [0, (cut + 1) // 2, cut, (cut + len(layers)) // 2, len(layers)], [rank, rank + 2]
    else:
        bounds, mine = [0, cut, len(layers)], [rank]
    modules = [nn.Sequential(*layers[bounds[i]:bounds[i + 1]]) for i in mine]
    stages = [PipelineStage(module, i, len(bounds) - 1, torch.device("cpu")) for module, i in zip(modules, mine)]
    if mode == "interleaved":
        schedule = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=loss_of)
    else:
        schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[mode](stages[0], microbatches, loss_fn=loss_of)
    first, last = 0 in mine, len(bounds) - 2 in mine
    return ([p for module in modules for p in module.parameters()],
            lambda x, y: schedule.step(*([x] if first else []), **({"target": y} if last else {})))


def trainer_of(mode, rank, name, microbatches):
    layers, cut, inputs = workload(name)
    x, labels = inputs(WORKLOADS[name][1]).values()
    if mode in ("eager", "independent", "ddp"):
        net = nn.Sequential(*layers)
        if mode == "ddp":
            net = nn.parallel.DistributedDataParallel(net)
        parameters, run = list(net.parameters()), lambda x, y: loss_of(net(x), y).backward()
    else:
        parameters, run = schedule_of(mode, rank, layers, cut, microbatches)
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        run(x, labels)
        optimizer.step()
    return step


def measure(rank, mode, name, microbatches, port, results):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    if mode != "eager":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=2)
    step = trainer_of(mode, rank, name, microbatches)
    # All ranks must make the same number of steps, so rank 0's clock decides for all.
    begin, warm = time.perf_counter(), 0
    for _ in range(3):
        step()
    steps = torch.tensor(max(1.0, 3 * MEASURED_SECONDS / PARTS / (time.perf_counter() - begin)))
    warm = torch.tensor(max(3.0, float(steps) * PARTS * WARM_UP_SECONDS / MEASURED_SECONDS))
    if mode != "eager":
        dist.broadcast(steps, 0)
        dist.broadcast(warm, 0)
    for _ in range(int(warm)):
        step()
    times = []
    for _ in range(PARTS):
        if mode != "eager":
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(steps)):
            step()
        if mode != "eager":
            dist.barrier()
        times.append((time.perf_counter() - begin) / int(steps))
    if rank == 0:
        results.put(times)
    if mode != "eager":
        dist.barrier()
        dist.destroy_process_group()


def main():
    mode, name = sys.argv[1:3]
    microbatches = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    results = mp.get_context("spawn").Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if mode == "eager":
        measure(0, mode, name, microbatches, port, results)
    else:
        mp.spawn(measure, (mode, name, microbatches, port, results), 2)
    samples = WORKLOADS[name][1] * (2 if mode in ("ddp", "independent") else 1)
    print(json.dumps({"samples_per_second": samples / statistics.median(results.get())}))


if __name__ == "__main__":
    main()
