#!/usr/bin/env python3
"""Makes the exported programs of this folder, their minibatches, and the losses that PyTorch trains them with.

    python tests/models/pt2/make_fixtures.py            # needs torch 2.11, safetensors and xxhash
    python tests/models/pt2/make_fixtures.py NAME       # that one only
    python tests/models/pt2/make_fixtures.py --check    # trains the files that are there, writes nothing

expected.json: of each, the SPEC's options, the batch size and the losses of five steps of plain SGD. Where numbers are
drawn, each node's generator is seeded as Pipewright does it (models/run/interpreter.h, models/run/random_key.h).
"""
import argparse
import json
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2] / "python"))
from pipewright import exporting  # noqa: E402

BATCH, STEPS, RATE, SEED = 4, 5, 0.1, 7


class Residual(nn.Module):
    """Convolutions, batch norms and additions in place, as ResNet has them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 5)

    def forward(self, images, labels):
        x = self.relu(self.stem(images))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        scores = self.head(self.relu(y).mean((2, 3)))
        return F.cross_entropy(scores, labels), scores


class Attention(nn.Module):
    """A block of a decoder: transposed views into attention, a constant of positions."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm1, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm2, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        scores = self.head(x)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


class TiedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, labels):
        scores = self.head(torch.tanh(self.middle(self.embedding(tokens))))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8),
                                    nn.BatchNorm1d(8, momentum=0.3), nn.Hardswish(inplace=True), nn.Linear(8, 5))

    def forward(self, features, labels):
        return F.cross_entropy(self.layers(features), labels)


class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 16),
                                    nn.Dropout(0.2, inplace=True), nn.Linear(16, 5))

    def forward(self, features, labels):
        return F.cross_entropy(self.layers(features), labels)


class StochasticDepth(nn.Module):
    """Random numbers are drawn into new memory, as torchvision and timm do it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def drop(self, x):
        kept = torch.empty([x.shape[0], 1]).bernoulli_(0.7)
        kept.div_(0.7)
        return x * kept

    def forward(self, features, labels):
        x = features + self.drop(torch.relu(self.first(features)))
        x = x + self.drop(torch.relu(self.second(x)))
        return F.cross_entropy(self.head(x), labels)


class InPlaceChain(nn.Module):
    """Writes into what it made, into its own input, and into a part of a new tensor."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, features, labels):
        features.mul_(0.5).add_(0.1)
        x = self.first(features)
        x.mul_(1.5).relu_()
        shifted = torch.zeros_like(x)
        shifted[:, 1:] = x[:, :-1]
        x = self.second(shifted + x)
        x[:, 0] = 0.25
        x.clamp_(-2, 2)
        return F.cross_entropy(self.head(x), labels)


class ViewAcrossCut(nn.Module):
    """Views of one tensor that are read far apart, one of them not contiguous."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 12), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, features, labels):
        a, b, c = self.first(features).view(-1, 3, 4).unbind(1)
        square = (a.unsqueeze(2) * b.unsqueeze(1)).transpose(1, 2)
        x = self.second(torch.tanh(a)) + b
        x = torch.matmul(square, x.unsqueeze(2)).squeeze(2) + self.third(c)
        return F.cross_entropy(self.head(torch.tanh(x)), labels)


class SeveralInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.images, self.head = nn.Embedding(7, 6), nn.Linear(9, 6), nn.Linear(6, 5)

    def forward(self, images, tokens, mask, labels):
        words = (self.embedding(tokens) * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        scores = self.head(torch.relu(self.images(images.flatten(1)) + words))
        return F.cross_entropy(scores, labels), scores


class NoLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.SiLU(inplace=True), nn.Linear(8, 5))

    def forward(self, features):
        return self.layers(features)


class Modes(nn.Module):
    """Parts without gradient, a part without autocast, a buffer that the forward changes, one that is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 5)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, features, labels):
        x = self.first(features)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            weight = torch.softmax(x * self.scale, -1)
        with torch.autocast("cpu", enabled=False):
            x = torch.tanh(x - self.mean) * weight * torch.tensor([1.0, 2.0] * 4)
        return F.cross_entropy(self.head(x), labels)


class Autocast(nn.Module):
    """Parts that run with bfloat16, and a part in them that does not."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, features, labels):
        x = self.first(features)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.gelu(self.second(self.norm(x)))
            with torch.autocast("cpu", enabled=False):
                y = torch.matmul(y.float(), torch.linspace(-1, 1, 64).view(8, 8))
            scores = self.head(y + x)
        with torch.autocast("cuda", enabled=True):  # of another device: nothing changes
            scores = torch.tanh(scores.float()) * 2
        return F.cross_entropy(scores, labels)


class Rotary(nn.Module):
    """Positions as rotations of complex numbers, as Llama was first written, and a table of small integers."""

    def __init__(self):
        super().__init__()
        self.tokens, self.turn, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)
        angles = torch.outer(torch.arange(6.0), 10.0 ** -torch.arange(0.0, 1.0, 0.25))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.register_buffer("order", torch.tensor([3, 1, 4, 0, 5, 2], dtype=torch.int16))

    def forward(self, tokens, labels):
        x = self.tokens(tokens)[:, self.order.long()]
        pairs = torch.view_as_complex(self.turn(x).unflatten(-1, (-1, 2)))
        scores = self.head(x + torch.view_as_real(pairs * self.rotations).flatten(-2))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


class OpenBatch(nn.Module):
    """The number of samples is left open, and is an argument of some nodes."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(8, 5)

    def forward(self, features, labels):
        x = torch.relu(self.first(features.reshape(features.shape[0] * 2, 3)))
        scores = self.head(x.reshape(features.shape[0], 8))
        return F.cross_entropy(scores, labels), scores


class BatchElsewhere(nn.Module):
    """The batch is the second dimension, the last, folded with tokens and doubled; and four rows are no batch of four."""

    def __init__(self):
        super().__init__()
        self.tokens, self.middle, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.register_buffer("table", torch.linspace(-1, 1, 32).view(4, 8))

    def forward(self, tokens, labels):
        count, length = tokens.shape
        x = self.tokens(tokens).transpose(0, 1)
        x = torch.tanh(self.middle(x.reshape(length * count, 8)) + torch.tanh(self.table).mean(0))
        x = x.view(length, count, 8).permute(2, 0, 1)
        x = torch.cat((x, x.flip(1)), 2).mean(1).t()
        scores = self.head(x[:count] - x[count:] + x[:count].abs())
        return F.cross_entropy(scores, labels), scores


class SharedMask(nn.Module):
    """Masks, positions and rotary tables that every block reads, and a head that nobody asks for."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head, self.unused = nn.Linear(8, 11), nn.Linear(8, 3)
        self.register_buffer("frequencies", 1 / 100 ** torch.arange(0, 1, 0.5), persistent=False)

    def rotated(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, tokens, keep, labels):
        length = tokens.shape[1]
        positions = torch.arange(length)
        angles = (positions[:, None] * self.frequencies).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        mask = (positions[:, None] >= positions[None, :]) & (keep[:, None, None, :] > 0)
        x = self.tokens(tokens)
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in qkv(x).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(self.rotated(q, cos, sin), self.rotated(k, cos, sin), v, attn_mask=mask)
            x = x + out(y.transpose(1, 2).flatten(2))
        scores = self.head(x)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores, self.unused(x).relu().sum((1, 2))


class Permuted(nn.Module):
    """Permutes as ConvNeXt does: what crosses a cut lies in memory otherwise than its sizes say, and kernels sum it otherwise."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(1, 16, 2, stride=2), nn.Conv2d(16, 16, 2, stride=2)
        self.wide = nn.ModuleList(nn.Conv2d(16, 16, 7, padding=3, groups=16) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.up, self.out = (nn.ModuleList(nn.Linear(*sizes) for _ in range(2)) for sizes in ((16, 32), (32, 16)))
        self.head = nn.Linear(16, 5)

    def normed(self, i, x):
        return self.norm[i](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def block(self, i, x):
        y = self.norm[i](self.wide[i](x).permute(0, 2, 3, 1))
        y = self.out[i](F.gelu(self.up[i](y))).permute(0, 3, 1, 2)
        return y.add_(x)

    def forward(self, images, labels):
        x = self.block(0, self.normed(2, self.stem(images)))
        x = self.block(1, self.down(self.normed(3, x)))
        scores = self.head(x.mean((2, 3)))
        return F.cross_entropy(scores, labels), scores


class ReadOften(nn.Module):
    """A value that every layer reads: its gradient is a sum of many, of which stages must not make another sum."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.head = nn.Linear(16, 5)

    def forward(self, features, labels):
        x = self.first(features)
        total = x
        for layer in self.layers:
            total = total + layer(x).tanh()
        scores = self.head(total)
        return F.cross_entropy(scores, labels), scores


class Spectral(nn.Module):
    """Both spectral norms of PyTorch: a step of the power method with each forward, F.normalize(out=) into buffers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.second = torch.nn.utils.spectral_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, features, labels):
        scores = self.head(torch.tanh(self.second(torch.tanh(self.first(features)))))
        return F.cross_entropy(scores, labels), scores


class Returns(nn.Module):
    """A batch norm that is frozen, a counter that is not saved, and a loss of one element behind what is none."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.norm.running_mean.fill_(0.5)
        self.norm.running_var.fill_(4.0)
        self.norm.eval()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, features, labels):
        self.seen += 1
        scores = self.head(torch.relu(self.norm(self.up(features))) * self.seen)
        return None, 3, {"all": [scores, F.cross_entropy(scores, labels).reshape(1)]}


def features(count):
    return torch.randn(count, 6)


def labels(count, *shape):
    return torch.randint(0, 5, (count, *shape))


def tokens(count):
    return torch.randint(0, 11, (count, 6))


# Name: module, fields of `count` samples, and what is out of the ordinary.
def kept(count):
    keep = torch.randint(0, 2, (count, 6))
    keep[:, 0] = 1  # no token is left without one to look at
    return keep


FIXTURES = {
    "residual": (Residual, lambda n: {"images": torch.randn(n, 1, 8, 8), "labels": labels(n)}, {}),
    "attention": (Attention, lambda n: {"tokens": tokens(n), "labels": tokens(n)}, {}),
    "tied_embedding": (TiedEmbedding, lambda n: {"tokens": tokens(n), "labels": tokens(n)}, {}),
    "batch_norm": (BatchNorm, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "dropout": (Dropout, lambda n: {"features": features(n), "labels": labels(n)}, {"random": True}),
    "stochastic_depth": (StochasticDepth, lambda n: {"features": features(n), "labels": labels(n)}, {"random": True}),
    "in_place_chain": (InPlaceChain, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "view_across_cut": (ViewAcrossCut, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "several_inputs": (SeveralInputs, lambda n: {"images": torch.randn(n, 1, 3, 3), "tokens": torch.randint(0, 7, (n, 4)),
                                                 "mask": torch.randint(0, 2, (n, 4)).float(), "labels": labels(n)}, {}),
    "no_loss": (NoLoss, lambda n: {"features": features(n), "labels": labels(n)}, {"options": "loss=cross_entropy"}),
    "no_loss_mse": (NoLoss, lambda n: {"features": features(n), "targets": torch.randn(n, 5)}, {"options": "loss=mse"}),
    "modes": (Modes, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "open_batch": (OpenBatch, lambda n: {"features": features(n), "labels": labels(n)}, {"dynamic": True}),
    "shared_mask": (SharedMask, lambda n: {"tokens": tokens(n), "keep": kept(n), "labels": tokens(n)}, {}),
    "rotary": (Rotary, lambda n: {"tokens": tokens(n), "labels": tokens(n)}, {}),
    "autocast": (Autocast, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "permuted": (Permuted, lambda n: {"images": torch.randn(n, 1, 16, 16), "labels": labels(n)}, {"dynamic": True}),
    "read_often": (ReadOften, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "spectral": (Spectral, lambda n: {"features": features(n), "labels": labels(n)}, {}),
    "returns": (Returns, lambda n: {"features": features(n), "labels": labels(n)}, {"options": "output=3"}),
    "batch_elsewhere": (BatchElsewhere, lambda n: {"tokens": tokens(n), "labels": labels(n)}, {"dynamic": True}),
}


class Seeded(torch.fx.Interpreter):
    """Seeds each node that draws numbers by its name, as stream_key() of models/run/random_key.h."""

    minibatch = 0

    def run_node(self, node):
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
            import xxhash

            words = struct.pack("<qQ", self.minibatch, xxhash.xxh3_64_intdigest(node.name.encode()))
            torch.manual_seed(xxhash.xxh3_64_intdigest(words, seed=SEED))
        return super().run_node(node)


def losses_of(name, fields):
    """Of five steps: of the module as it was written, or, where numbers are drawn, of the program node by node."""
    module, _, extra = FIXTURES[name]
    program = torch.export.load(FOLDER / f"{name}.pt2")
    trained = program.module()
    seeded = Seeded(trained)
    if not extra.get("random"):
        trained = module()
        trained.load_state_dict(program.state_dict)
        for buffer, value in program.constants.items():
            if buffer in dict(trained.named_buffers()):
                trained.get_buffer(buffer).copy_(value)
    optimizer = torch.optim.SGD(trained.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        batch = [tensor[step * BATCH:(step + 1) * BATCH].clone() for tensor in fields.values()]
        inputs = batch[:-1] if extra.get("options", "").startswith("loss=") else batch
        if extra.get("random"):
            seeded.minibatch = step
            output = seeded.run(*inputs)
        else:
            output = trained(*inputs)
        output = exporting.leaves_of(output)[3 if extra.get("options") == "output=3" else 0]
        if extra.get("options") == "loss=cross_entropy":
            output = F.cross_entropy(output, batch[-1])
        if extra.get("options") == "loss=mse":
            output = F.mse_loss(output, batch[-1])
        optimizer.zero_grad()
        output.backward()
        optimizer.step()
        losses.append(output.item())
    return losses


def main():
    from safetensors.torch import load_file, save_file

    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    check = arguments.check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    known = FOLDER / "expected.json"
    expected = {} if check or not arguments.names else json.loads(known.read_text())
    for number, (name, (module, make, extra)) in enumerate(FIXTURES.items()):
        if arguments.names and name not in arguments.names:
            continue
        torch.manual_seed(number)
        data = FOLDER / f"{name}.safetensors"
        if not check:
            fields = make(STEPS * BATCH)
            save_file(fields, data)
            data.chmod(0o644)
            inputs = {field: tensor[:BATCH] for field, tensor in fields.items()}
            if extra.get("options", "").startswith("loss="):
                inputs.popitem()
            exporting.export(module(), inputs, FOLDER / f"{name}.pt2", extra.get("dynamic", False))
        stored = load_file(data)  # sorted by name; the module's arguments are in the order of the program's inputs
        order = list(make(1))
        losses = losses_of(name, {field: stored[field] for field in order})
        expected[name] = {"options": extra.get("options", ""), "batch_size": BATCH, "learning_rate": RATE, "seed": SEED,
                          "losses": losses}
        print(f"{name:18}", " ".join(f"{loss:.6f}" for loss in losses), flush=True)
    if check:
        written = json.loads(known.read_text())
        for name, entry in expected.items():
            difference = max(abs(a - b) for a, b in zip(entry["losses"], written[name]["losses"]))
            assert difference < 1e-5, f"{name}: losses differ by {difference}"
        print("as in expected.json")
    else:
        known.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
