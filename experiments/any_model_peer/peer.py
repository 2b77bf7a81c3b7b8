"""PyTorch's side: a model in two stages of torch.distributed.pipelining, two processes with Schedule1F1B over gloo.

The model is made in a process of its own, since first weights depend on PyTorch's generator; from there one process trains it with plain PyTorch,
and one for each cut traces it and forks the two ranks."""
import multiprocessing.connection
import tempfile
import time

import torch
import torch.distributed as dist
from apart import Failed, answer, apart, fork
from cuts import cuts_of
from models import BATCH, MICROBATCHES, RATE, STEPS, compare_models, expected_losses, exporting, model_and_data
from torch.distributed.pipelining import Schedule1F1B, pipeline

MODEL_SECONDS, TRACE_SECONDS, TRAIN_SECONDS = 1800, 600, 240
EQUAL = 1e-4  # of a loss, from PyTorch's: as compare_models has it


def inputs_of_first(pipe, values):
    """Of the model's inputs those that its first stage takes."""
    first = next(node for node in pipe.split_gm.graph.nodes if node.op == "call_module")
    inputs = [node for node in pipe.split_gm.graph.nodes if node.op == "placeholder"]
    return [values[inputs.index(node)] for node in first.args if node in inputs]


def add_shared_gradients(pipe, rank, stage):
    """Of parameters that both stages read, which PyTorch leaves to its user (Pipe.replicated_params)."""
    stages = [node.target for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    for names in pipe.replicated_params:
        parameter = stage.submod.get_parameter(names[stages[rank]])
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


def train(pipe, rank, data, folder):
    """The losses of all microbatches, of the last stage; of the first none."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    labels = data.get("labels")

    def loss_of(output, target):
        return exporting.scores_of(output) if labels is None else exporting.cross_entropy(output, target)[0]

    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH * MICROBATCHES, (step + 1) * BATCH * MICROBATCHES)
        inputs = [tensor[part].clone() for field, tensor in data.items() if field != "labels"]
        optimizer.zero_grad()
        told = []
        if rank == 0:
            schedule.step(*inputs_of_first(pipe, inputs))
        else:
            schedule.step(target=torch.zeros(BATCH * MICROBATCHES) if labels is None else labels[part], losses=told, return_outputs=False)
        add_shared_gradients(pipe, rank, stage)
        optimizer.step()
        losses += [loss.item() for loss in told]
    dist.barrier()
    return losses


def train_in_two(pipe, data):
    """Both ranks; the first that fails ends the attempt, since the other may wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [fork.Pipe() for _ in range(2)]
        ranks = [fork.Process(target=answer, args=(pairs[rank][1], "failed", train, (pipe, rank, data, folder))) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for _, there in pairs:
            there.close()
        ends, losses, until = [here for here, _ in pairs], [], time.monotonic() + TRAIN_SECONDS
        while ends:
            ready = multiprocessing.connection.wait(ends, max(0, until - time.monotonic()))
            if not ready:
                raise Failed("time-out", f"the ranks took longer than {TRAIN_SECONDS} s")
            for end in ready:
                try:
                    failed, value = end.recv()
                except EOFError:
                    raise Failed("failed", "a rank ended without a word") from None
                if failed is not None:
                    raise Failed(failed, value)
                ends.remove(end)
                losses += value
        return losses


def trace_and_train(model, data, how):
    inputs = tuple(tensor[:BATCH].clone() for field, tensor in data.items() if field != "labels")
    pipe = pipeline(model, inputs, **how)
    if pipe.num_stages != 2:
        raise RuntimeError(f"the tracer made {pipe.num_stages} stages of a model with one split point")
    return train_in_two(pipe, data)


def all_cuts(model, data):
    """A line for each cut that was tried, until one trains as plain PyTorch does. The model is left as it was."""
    expected = apart(TRACE_SECONDS, "plain PyTorch fails", expected_losses, model, data)
    lines = []
    with exporting.as_it_was(model):
        exporting.with_forward(model, exporting.scores_of)
        with exporting.unchanged(model):
            cuts = cuts_of(model, [tensor[:BATCH].clone() for field, tensor in data.items() if field != "labels"])
        for cut, how in cuts:
            try:
                got = apart(TRACE_SECONDS + TRAIN_SECONDS, "refused", trace_and_train, model, data, how)
                difference = compare_models.largest_difference(expected, got)
                lines.append({"outcome": "equal" if difference <= EQUAL else "differs", "cut": cut, "difference": difference})
            except Failed as failure:
                lines.append({"outcome": failure.outcome, "cut": cut, "reason": str(failure)})
            if lines[-1]["outcome"] == "equal":
                break
    return lines


def furthest(lines):
    order = ("equal", "differs", "failed", "time-out", "refused")
    return min(lines, key=lambda line: order.index(line["outcome"]))


def one_model(name):
    """What became of the cut that came furthest. Where none trains, `eager` is what becomes of the model with another attention than its own,
    whose masks are floating-point numbers."""
    model, data = model_and_data(name, MICROBATCHES * STEPS)
    compare_models.without_chance(model)
    lines = all_cuts(model, data)
    line = {**furthest(lines), "tried": [one["outcome"] for one in lines]}
    if line["outcome"] != "equal" and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
        line["eager"] = furthest(all_cuts(model, data))["outcome"]
    return line


def outcome(name, log):
    begin = time.monotonic()
    try:
        line = apart(MODEL_SECONDS, "cannot be made", one_model, name, log=log)
    except Failed as failure:
        line = {"outcome": failure.outcome, "reason": str(failure)}
    return {**line, "seconds": round(time.monotonic() - begin, 1)}


def warm_up():
    """What torch.export imports when it first runs, for all processes that are forked from this one."""
    torch.set_num_threads(1)
    torch.export.export(torch.nn.Linear(1, 1), (torch.zeros(1, 1),)).module()
