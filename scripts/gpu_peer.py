#!/usr/bin/env python3
"""PyTorch's side of scripts/check_gpu --peer: exports a model, and times steps of eager PyTorch and torch.compile on it.

    scripts/gpu_peer.py MODEL --name NAME --batch-size N --steps N --device cuda:0 --output FILE.pt2

MODEL: gpt:layers=...,width=...,heads=...,tokens=...,vocabulary=... , or torchvision:NAME. Prints "ready" when all is
exported and compiled, and waits for a line before it measures. Ends with 2 where this Python cannot do it.
"""
import argparse
import importlib.util
import pathlib
import sys
import time

for library in ("torch", "torchvision") if any(word.startswith("torchvision:") for word in sys.argv) else ("torch",):
    if importlib.util.find_spec(library) is None:
        print(f"gpu_peer.py: error: this Python, {sys.executable}, has no {library}", file=sys.stderr)
        sys.exit(2)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from pipewright.exporting import export, find_model, first_line, parsed, with_loss  # noqa: E402
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.before_layers(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, tokens, vocabulary):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places)))


def model_and_inputs(arguments, samples):
    if arguments.model.startswith("gpt:"):
        size = {name: parsed(value) for name, value in (word.split("=") for word in arguments.model[4:].split(","))}
        shape = (samples, size["tokens"])
        return Gpt(**size), {name: torch.randint(size["vocabulary"], shape) for name in ("tokens", "labels")}
    model, _ = find_model(arguments.model, {}, arguments.classes)
    return model, {"images": torch.randn(samples, 3, arguments.image, arguments.image), "labels": torch.randint(arguments.classes, (samples,))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name in ("--name", "--device", "--output"):
        parser.add_argument(name, required=True)
    for name in ("--batch-size", "--steps", "--image", "--classes"):
        parser.add_argument(name, type=int, default=10)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    model, inputs = model_and_inputs(arguments, 2)
    model = with_loss(model, "cross_entropy", inputs)
    export(model, inputs, arguments.output, dynamic_batch=True)  # of two samples: its checks run on the processor

    _, inputs = model_and_inputs(arguments, arguments.batch_size)
    fields = [tensor.to(device) for tensor in inputs.values()]
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def steps(forward, count):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = forward(*fields)[0]
            loss.backward()
            optimizer.step()
        wait()
        return (time.perf_counter() - began) / count

    sides = {"eager PyTorch": model, "torch.compile": torch.compile(model)}
    steps(model, 1)
    try:
        steps(sides["torch.compile"], 1)
    except Exception as error:  # where it finds no compiler, say
        print(f"SKIPPED: torch.compile: {first_line(error)}")
        del sides["torch.compile"]
    print("ready", flush=True)
    sys.stdin.readline()
    for side, forward in sides.items():
        steps(forward, 5)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        print(f"figure: {arguments.name}, exported: a minibatch of {side}: {1e3 * steps(forward, arguments.steps):.4g} ms")
        if device.type == "cuda":
            print(f"figure: {arguments.name}, exported: allocated by {side}: {torch.cuda.max_memory_allocated(device) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
