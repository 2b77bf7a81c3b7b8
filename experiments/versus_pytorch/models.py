"""The models of this comparison, as lists of layers, so that both sides cut them at the same place.

workload(NAME) gives the layers, the first layer of the second stage, and inputs for a batch: a dict by the names of the
fields, the last of which are labels."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    def __init__(self, vocabulary, tokens, width):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(tokens, width))

    def forward(self, tokens):
        return self.words(tokens) + self.positions


def convolution(inputs, outputs, norm=False, pool=False):
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm)]
    if norm:
        layers.append(nn.BatchNorm2d(outputs))
    layers.append(nn.ReLU())
    if pool:
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def images(batch, size):
    return {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 10, (batch,))}


def text(batch, tokens, vocabulary, classes):
    return {"tokens": torch.randint(0, vocabulary, (batch, tokens)), "labels": torch.randint(0, classes, (batch, tokens))}


def vectors(batch, width, classes):
    return {"vectors": torch.randn(batch, width), "labels": torch.randint(0, classes, (batch,))}


def wide_linear():
    """Many parameters, small activations: eight layers of 1024 x 1024."""
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)] + [nn.Linear(1024, 10)]
    return layers, 4, lambda batch: vectors(batch, 1024, 10)


def language_model():
    """Six blocks of attention, width 256, 128 tokens."""
    layers = [Embedding(512, 128, 256)] + [Attention(256, 4) for _ in range(6)] + [nn.Linear(256, 512)]
    return layers, 4, lambda batch: text(batch, 128, 512, 512)


def convolutions():
    """Large activations, few parameters."""
    widths = [3, 64, 64, 128, 128, 256, 256]
    layers = [convolution(widths[i], widths[i + 1], pool=i % 2 == 1) for i in range(6)]
    layers += [nn.Sequential(nn.Flatten(), nn.Linear(4096, 512), nn.ReLU()), nn.Linear(512, 10)]
    return layers, 2, lambda batch: images(batch, 32)


def tiny_linear():
    """What is left when there is nothing to compute: sixteen layers of 64 x 64."""
    return [nn.Linear(64, 64) for _ in range(16)], 8, lambda batch: vectors(batch, 64, 64)


def heavy_embedding():
    """A language model whose embedding has most of the parameters."""
    layers = [Embedding(16384, 64, 256)] + [Attention(256, 4) for _ in range(2)] + [nn.Linear(256, 512)]
    return layers, 2, lambda batch: text(batch, 64, 16384, 512)


def normed_convolutions():
    """Convolutions with batch norm, whose statistics every rank keeps."""
    widths = [3, 32, 32, 64, 64, 128]
    layers = [convolution(widths[i], widths[i + 1], norm=True, pool=i % 2 == 1) for i in range(5)]
    layers += [nn.Sequential(nn.Flatten(), nn.Linear(128 * 64, 10))]
    return layers, 2, lambda batch: images(batch, 32)


# Name: the function, samples of a minibatch.
WORKLOADS = {"W1": (wide_linear, 32), "W2": (language_model, 8), "W3": (convolutions, 32), "W4": (tiny_linear, 8),
             "W5": (heavy_embedding, 8), "W6": (normed_convolutions, 32)}


def workload(name):
    torch.manual_seed(0)
    return WORKLOADS[name][0]()


def loss_of(scores, labels):
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


class WithLoss(nn.Module):
    """What is exported: the layers and the loss. `layers` has the same cuts as the list."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x, labels):
        return loss_of(self.layers(x), labels)
