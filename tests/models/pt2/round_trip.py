#!/usr/bin/env python3
"""Weights go from PyTorch to Pipewright and back, as safetensors files.

    python tests/models/pt2/round_trip.py --programs build/release/bin [NAME ...]

Each model trains 20 steps in Pipewright; `checkpoint export` writes a file that load_state_dict(strict=True) takes, and in
PyTorch the evaluation loss is Pipewright's. Then PyTorch trains on from there, saves a file and a sharded index, and
Pipewright begins with each: the losses of its first steps are PyTorch's. To 1e-5.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
from torch import nn

from compare_models import exporting, largest_difference, losses_of, run, vision, language, without_chance

STEPS, EVALUATIONS, MORE, BATCH, RATE = 20, 3, 5, 4, 0.02


class Everything(nn.Module):
    """Tied weights, statistics, a buffer that is not saved, a parameter and a buffer that nothing reads."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle, self.norm = nn.Embedding(11, 8), nn.Linear(8, 8), nn.BatchNorm1d(6)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.unread = nn.Linear(3, 2)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, tokens):
        return self.head(torch.tanh(self.middle(self.norm(self.embedding(tokens)) * self.scale)))


def everything():
    tokens = lambda n: torch.randint(0, 11, (n, 6))  # noqa: E731
    return Everything(), {"tokens": tokens, "labels": tokens}


MODELS = {
    "everything": everything,
    "resnet18": vision("resnet18", 32),
    "gpt2": language("AutoModelForCausalLM", "gpt2", n_layer=2, n_embd=32, n_head=4, n_positions=32),
}


def batches(data, count):
    return [[tensor[k * BATCH:(k + 1) * BATCH].clone() for tensor in data.values()] for k in range(count)]


def made(make, first=None, state=None):
    model, fields = make()
    if state is not None:
        model.load_state_dict(state, strict=True)
    model = without_chance(model).train()
    return (model, fields) if first is None else exporting.with_loss(model, "cross_entropy", first)


def trained_in_python(model, data, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for batch in batches(data, steps):
        loss = model(*batch)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def save_sharded(state, folder):
    """As transformers does it: files, and an index that says which tensor is in which."""
    from safetensors.torch import save_file

    shards = [dict(list(state.items())[i::3]) for i in range(3)]
    index = {"metadata": {}, "weight_map": {}}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file({key: tensor.clone() for key, tensor in shard.items()}, folder / name, metadata={"format": "pt"})
        index["weight_map"].update({key: name for key in shard})
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps(index))
    return file


def round_trip(make, programs, folder):
    """How far the evaluation, and training from a file and from shards, are off."""
    from safetensors.torch import load_file, save_file, save_model

    torch.manual_seed(0)
    model, fields = made(make)
    data = {name: draw(BATCH * STEPS) for name, draw in fields.items()}
    evaluation = {name: draw(BATCH * EVALUATIONS) for name, draw in fields.items()}
    for name, tensors in (("data", data), ("evaluation", evaluation)):
        save_file({field: tensor.clone() for field, tensor in tensors.items()}, folder / f"{name}.safetensors")
    first = {name: tensor[:BATCH] for name, tensor in data.items()}
    exporting.export(exporting.with_loss(model, "cross_entropy", first), first, folder / "model.pt2")

    def train(output, *more):
        run(programs / "pipewright-runtime", "train", "--model", folder / "model.pt2", "--data",
            f"tensors:file={folder / 'data.safetensors'}", "--batch-size", BATCH, "--learning-rate", RATE, "--output",
            folder / output, *more)

    train("run", "--minibatches", STEPS, "--evaluation-data", f"tensors:file={folder / 'evaluation.safetensors'}",
          "--checkpoint-every-epochs", 1)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    there = [line["evaluation"]["loss"] for line in lines if "evaluation" in line][-1]
    run(programs / "pipewright-runtime", "checkpoint", "export", folder / "run", "--output", folder / "trained.safetensors")

    torch.manual_seed(1)  # other weights than those that the program has
    model = made(make, first, load_file(folder / "trained.safetensors"))
    model.eval()
    with torch.no_grad():
        losses = [model(*batch)[0].item() for batch in batches(evaluation, EVALUATIONS)]
    differences = [largest_difference([sum(losses) / len(losses)], [there])]

    trained_in_python(model.train(), data, MORE)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_model(model, str(folder / "back.safetensors"))  # a tied tensor once, under one of its names
    files = [folder / "back.safetensors", save_sharded(state, folder)]
    expected = trained_in_python(made(make, first, state), data, MORE)
    for number, file in enumerate(files):
        train(f"back{number}", "--minibatches", MORE, "--initial-weights", file)
        differences.append(largest_difference(expected, losses_of(folder / f"back{number}")))
    return differences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in arguments.names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            differences = round_trip(MODELS[name], arguments.programs, pathlib.Path(folder))
        equal = max(differences) <= 1e-5
        print(f"{name:12} evaluation in PyTorch, training from a file and from shards differ by "
              f"{', '.join(f'{difference:.1e}' for difference in differences)}  {'ok' if equal else 'DIFFERS'}", flush=True)
        failed += not equal
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
