#!/usr/bin/env python3
"""What PyTorch says of the zoo's models: writes losses.json, or with --check compares with it.

    python tests/models/zoo/make_losses.py            # needs torch, torchvision, transformers
    python tests/models/zoo/make_losses.py --check

Each model gets weights and one minibatch from filled(), which tests/models/zoo_losses_test.cc writes again in C++. Of two
minibatches that are the same, with a step of SGD between them, the losses must agree: the first says that the forward does,
the second that the gradients do. Without dropout, and in double precision: deep batch norms of three samples make anything of float's rounding. `parameters` is the number that the model with default options has.
"""
import argparse
import json
import math
import os
import sys

import numpy
import small_models
import torch
from torch import nn

SAMPLES = 3
RATE = 0.001


def bits(name, count):
    """SplitMix64 from the FNV-1a hash of the name: one 64-bit number for each element."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(state) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def filled(name, shape, centre, scale):
    u = (bits(name, math.prod(shape)) >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
    return torch.from_numpy((centre + scale * (2 * u - 1)).astype(numpy.float32).reshape(shape))


def weight(name, shape):
    if len(shape) > 1:
        return filled(name, shape, 0.0, math.sqrt(6.0 / (math.prod(shape) // shape[0])))
    return filled(name, shape, 1.0 if name.endswith("weight") else 0.0, 0.1)


def numbers(name, shape, bound):
    return torch.from_numpy((bits(name, math.prod(shape)) % numpy.uint64(bound)).astype(numpy.int64).reshape(shape))


class Gnmt(nn.Module):
    """The encoder and decoder that models/zoo/gnmt.cc describes, with torch's packed sequences."""

    def __init__(self, layers, width, vocabulary, shared=False):
        super().__init__()
        half = layers // 2

        def lstm(inputs, **options):
            return nn.LSTM(inputs, width, batch_first=True, **options)

        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.embedder = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder.rnn_layers = nn.ModuleList(
            [lstm(width, bidirectional=True), lstm(2 * width)] + [lstm(width) for _ in range(half - 2)])
        self.decoder.embedder = self.encoder.embedder if shared else nn.Embedding(vocabulary, width, padding_idx=0)
        self.decoder.att_rnn = nn.Module()
        self.decoder.att_rnn.rnn = lstm(width)
        attn = self.decoder.att_rnn.attn = nn.Module()
        attn.linear_q = nn.Linear(width, width, bias=False)
        attn.linear_k = nn.Linear(width, width, bias=False)
        attn.linear_att = nn.Parameter(torch.zeros(width))
        attn.normalize_scalar = nn.Parameter(torch.zeros(1))
        attn.normalize_bias = nn.Parameter(torch.zeros(width))
        self.decoder.rnn_layers = nn.ModuleList(lstm(2 * width) for _ in range(half - 1))
        self.decoder.classifier = nn.Module()
        self.decoder.classifier.classifier = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        x = self.encoder.embedder(source)
        lengths = (source != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, _ = self.encoder.rnn_layers[0](packed)
        x, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=source.shape[1])
        x, _ = self.encoder.rnn_layers[1](x)
        for layer in self.encoder.rnn_layers[2:]:
            x = layer(x)[0] + x
        context = x
        x, _ = self.decoder.att_rnn.rnn(self.decoder.embedder(target))
        attn = self.decoder.att_rnn.attn
        keys = attn.linear_q(x).unsqueeze(2) + attn.linear_k(context).unsqueeze(1) + attn.normalize_bias
        vector = attn.normalize_scalar * attn.linear_att / attn.linear_att.norm()
        weights = (torch.tanh(keys) * vector).sum(-1)
        weights = weights.masked_fill((source == 0).unsqueeze(1), -math.inf).softmax(-1)
        attended = weights @ context
        for i, layer in enumerate(self.decoder.rnn_layers):
            y = layer(torch.cat((x, attended), 2))[0]
            x = y if i == 0 else y + x
        return self.decoder.classifier.classifier(x)


def sentences(name, bound, tokens):
    """Sentences of 1 to all tokens, filled up with 0."""
    used = numbers(name + ".lengths", (SAMPLES,), tokens) + 1
    return torch.where(torch.arange(tokens) < used.unsqueeze(1), numbers(name, (SAMPLES, tokens), bound - 1) + 1, 0)


def cases():
    """(SPEC, the model with default options, the model, its loss on a minibatch)"""
    import torchvision.models as zoo
    import transformers

    def images(spec, image, make, channels=3, **options):
        def loss(model):
            scores = model(filled("images", (SAMPLES, channels, image, image), 0.0, 1.0).double())
            labels = numbers("labels", (SAMPLES,), 10)
            if not torch.is_tensor(scores):
                scores, auxiliary = scores
                return nn.functional.cross_entropy(scores, labels) + 0.4 * nn.functional.cross_entropy(auxiliary, labels)
            return nn.functional.cross_entropy(scores, labels)

        return spec, make, lambda: make(num_classes=10, **options), loss

    def narrow(make):
        """AlexNet and VGG with hidden=64."""
        def built(**options):
            model = make(**options)
            if options:
                old = model.classifier
                linears = [i for i, layer in enumerate(old) if isinstance(layer, nn.Linear)]
                sizes = [old[linears[0]].in_features, 64, 64, 10]
                for i, position in enumerate(linears):
                    old[position] = nn.Linear(sizes[i], sizes[i + 1])
            return model
        return built

    for name, image in [("alexnet", 63), ("vgg11", 32), ("vgg13", 32), ("vgg16", 32), ("vgg19", 32)]:
        yield images(f"{name}:classes=10,hidden=64,image={image}", image, narrow(getattr(zoo, name)))
    for name in ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "squeezenet1_0",
                 "mobilenet_v2", "densenet121"]:
        yield images(f"{name}:classes=10,image=65", 65, getattr(zoo, name))
    for name in ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg13", "vgg16", "vgg19",
                 "mobilenet_v2"]:
        for image, channels, spec in [(28, 1, "small=yes,image=28,channels=1"), (32, 3, "small=yes")]:
            def small(name=name, image=image, channels=channels, **options):
                return small_models.named(name, image, channels, **options)
            yield images(f"{name}:{spec}", image, small, channels)
    yield images("inception_v3:classes=10,dropout=0", 299,
                 lambda **options: zoo.inception_v3(init_weights=False, aux_logits=True, **options))
    yield images("inception_v3:classes=10,auxiliary=no,image=107,dropout=0", 107,
                 lambda **options: zoo.inception_v3(init_weights=False, aux_logits=False, **options))

    def grey(num_classes=10):
        model = zoo.VisionTransformer(28, 7, 8, 4, 64, 256, num_classes=num_classes)
        model.conv_proj = nn.Conv2d(1, 64, 7, 7)
        return model

    yield images("vit", 28, grey, channels=1)

    def vit(num_classes=1000, image_size=224, num_layers=12):
        return zoo.VisionTransformer(image_size, 16, num_layers, 12, 768, 3072, num_classes=num_classes)

    yield images("vit_b_16:classes=10,image=48,layers=2", 48, vit, image_size=48, num_layers=2)

    def bert(**options):
        return transformers.BertForMaskedLM(transformers.BertConfig(
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options))

    def bert_loss(model):
        tokens, labels = numbers("tokens", (SAMPLES, 7), 50), numbers("labels", (SAMPLES, 7), 50)
        labels = torch.where(labels % 3 == 0, labels, -100)
        return nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())

    yield ("bert:layers=2,width=24,heads=3,tokens=7,positions=9,vocabulary=50,dropout=0", bert,
           lambda: bert(num_hidden_layers=2, hidden_size=24, num_attention_heads=3, intermediate_size=96,
                        max_position_embeddings=9, vocab_size=50), bert_loss)

    def padded():
        return dict(input_ids=numbers("tokens", (SAMPLES, 7), 50), token_type_ids=numbers("segments", (SAMPLES, 7), 2),
                    attention_mask=(torch.arange(7) <= numbers("lengths", (SAMPLES, 1), 7)).long())

    def pretrained(**options):
        return transformers.BertForPreTraining(transformers.BertConfig(
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options))

    def pretraining_loss(model):
        labels = numbers("labels", (SAMPLES, 7), 50)
        return model(**padded(), labels=torch.where(labels % 3 == 0, labels, -100),
                     next_sentence_label=numbers("next_sentence_labels", (SAMPLES,), 2)).loss

    yield ("bert:layers=2,width=24,heads=3,tokens=7,positions=9,vocabulary=50,dropout=0,next_sentence=yes", pretrained,
           lambda: pretrained(num_hidden_layers=2, hidden_size=24, num_attention_heads=3, intermediate_size=96,
                              max_position_embeddings=9, vocab_size=50), pretraining_loss)

    def tuned(kind, **options):
        return kind(transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options))

    for name, head, kind, options, labels in [
            ("bert-classifier", "classes=3,", transformers.BertForSequenceClassification, dict(num_labels=3), ["labels"]),
            ("bert-span", "", transformers.BertForQuestionAnswering, {}, ["start_positions", "end_positions"])]:
        def tuned_loss(model, labels=labels):
            fields = {"start_positions": "starts", "end_positions": "ends"}
            return model(**padded(), **{each: numbers(fields.get(each, each), (SAMPLES,), 3) for each in labels}).loss
        yield (f"{name}:{head}layers=2,width=24,heads=3,tokens=7,positions=9,vocabulary=50,dropout=0",
               lambda kind=kind, options=options: tuned(kind, **options),
               lambda kind=kind, options=options: tuned(kind, num_hidden_layers=2, hidden_size=24, num_attention_heads=3,
                                                        intermediate_size=96, max_position_embeddings=9, vocab_size=50, **options),
               tuned_loss)

    def gnmt_loss(model):
        source, target = sentences("source", 30, 6), sentences("target", 30, 5)
        labels = torch.where(target == 0, -100, numbers("labels", (SAMPLES, 5), 30))
        return nn.functional.cross_entropy(model(source, target).flatten(0, 1), labels.flatten(), label_smoothing=0.1)

    for layers, shared in [(4, False), (8, True)]:
        embedding = "shared" if shared else "separate"
        yield (f"gnmt:layers={layers},width=12,vocabulary=30,source=6,target=5,dropout=0,embedding={embedding}",
               lambda layers=layers, shared=shared: Gnmt(layers, 1024, 32320, shared),
               lambda layers=layers, shared=shared: Gnmt(layers, 12, 30, shared), gnmt_loss)


def losses_of(model, loss):
    model.double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weight(name, tuple(parameter.shape)))
    first = loss(model)
    first.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
    return [first.item(), loss(model).item()]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="compare with losses.json to 1e-8 and write nothing")
    arguments = arguments.parse_args()
    file = os.path.join(os.path.dirname(__file__), "losses.json")
    made = []
    for spec, default, model, loss in cases():
        torch.manual_seed(0)
        with torch.device("meta"):
            parameters = sum(p.numel() for p in default().parameters())
        made.append({"model": spec, "parameters": parameters, "losses": losses_of(model(), loss)})
        print(made[-1], file=sys.stderr)
    if not arguments.check:
        with open(file, "w") as out:
            out.write("[\n" + ",\n".join("  " + json.dumps(each) for each in made) + "\n]\n")
        return
    with open(file) as known:
        for got, expected in zip(made, json.load(known), strict=True):
            same = {**got, "losses": 0} == {**expected, "losses": 0}
            if not same or any(abs(a - b) > 1e-8 * abs(b) for a, b in zip(got["losses"], expected["losses"])):
                sys.exit(f"make_losses.py: got {got}, losses.json has {expected}")


if __name__ == "__main__":
    main()
