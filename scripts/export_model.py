#!/usr/bin/env python3
"""Exports a PyTorch model, with its loss, as a file that Pipewright trains: docs/bring-your-own-model.md.

    scripts/export_model.py torchvision:resnet18 --option num_classes=10 --image 64 --batch-size 32 --output resnet18.pt2
    scripts/export_model.py timm:vit_tiny_patch16_224 --option img_size=64 --image 64 --classes 1000 --output vit.pt2
    scripts/export_model.py transformers:gpt2 --option n_layer=4 --tokens 64 --classes 50257 --output gpt2.pt2
    scripts/export_model.py my_models:make_model --output mine.pt2

A function of your own, `module:function`, returns the model, or the model and its example inputs: a dict of tensors, by
the names of the fields of your data, in the order of the model's arguments. Needs torch, and what the model comes from.
"""
import argparse
import copy
import importlib
import inspect
import os
import sys
import types

import torch


def fail(message, remedy=""):
    sys.exit(f"export_model.py: error: {message}" + (f"\n  {remedy}" if remedy else ""))


def parsed(text):
    """The value of an option: a number, true, false, or the text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def cross_entropy(output, labels):
    scores = output.logits if hasattr(output, "logits") else output
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten()), scores


def mse(output, targets):
    prediction = output.logits if hasattr(output, "logits") else output
    return torch.nn.functional.mse_loss(prediction, targets), prediction


LOSSES = {"cross_entropy": cross_entropy, "mse": mse}


def with_loss(model, loss, inputs):
    """The model takes `inputs` by these names, the last of them labels, and returns the loss and the scores.

    The forward of the object is replaced, instead of another module put around it: names of parameters and layers stay
    those of the model."""
    names = list(inputs)
    forward = model.forward

    def forward_with_loss(self, *fields):
        output = forward(*fields[:-1])
        return LOSSES[loss](output, fields[-1])

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ["self", *names]]
    forward_with_loss.__signature__ = inspect.Signature(parameters)
    model.forward = types.MethodType(forward_with_loss, model)
    return model


def as_plain_tuple(model, outputs):
    """A model of transformers hands out an object; a program hands out tensors: the scores."""
    forward = model.forward

    def plain(self, *fields):
        output = forward(*fields)
        return tuple(getattr(output, name) for name in outputs)

    plain.__signature__ = inspect.signature(forward)
    model.forward = types.MethodType(plain, model)
    return model


def find_model(source, options):
    """The model, and its example inputs if it brings them."""
    library, _, name = source.partition(":")
    if not name:
        fail(f"'{source}' is no model", "Give torchvision:NAME, timm:NAME, transformers:TYPE or module:function.")
    if library == "torchvision":
        import torchvision

        return torchvision.models.get_model(name, **options), None
    if library == "timm":
        import timm

        return timm.create_model(name, **options), None
    if library == "transformers":
        import transformers

        config = transformers.AutoConfig.for_model(name, **options)
        config.use_cache = False
        known = transformers.AutoModelForCausalLM._model_mapping
        kind = transformers.AutoModelForCausalLM if type(config) in known and not name.startswith("bert") else None
        if kind is None and type(config) in transformers.AutoModelForMaskedLM._model_mapping:
            kind = transformers.AutoModelForMaskedLM
        if kind is None:
            kind = transformers.AutoModelForImageClassification
        return kind.from_config(config), None
    sys.path.insert(0, os.getcwd())
    made = getattr(importlib.import_module(library), name)(**options)
    return made if isinstance(made, tuple) else (made, None)


def example_inputs(arguments, source):
    """By the names of the fields of Pipewright's data sets."""
    generator = torch.Generator().manual_seed(0)
    batch = arguments.batch_size
    if source.startswith("transformers:") and not arguments.image_given:
        tokens = torch.randint(0, arguments.classes, (batch, arguments.tokens), generator=generator)
        return {"tokens": tokens, "labels": tokens.clone()}
    images = torch.randn(batch, arguments.channels, arguments.image, arguments.image, generator=generator)
    return {"images": images, "labels": torch.randint(0, arguments.classes, (batch,), generator=generator)}


def export(model, inputs, output, dynamic_batch=False):
    """Exports `model` in train mode, and checks that the file, read again, computes the same. Returns the program."""
    model.train()
    dynamic = None
    if dynamic_batch:
        batch = torch.export.Dim("batch", min=2)
        dynamic = tuple({0: batch} for _ in inputs)
    # Running it changes statistics (batch norm) and draws numbers (dropout): both are put back.
    state = copy.deepcopy(model.state_dict())  # with the versions of modules, which some ask for
    program = torch.export.export(model, tuple(inputs.values()), dynamic_shapes=dynamic)
    for module in program.graph_module.modules():  # sub-graphs too
        for node in getattr(getattr(module, "graph", None), "nodes", []):
            node.meta.pop("stack_trace", None)  # most of a small file, and paths of this machine
    torch.export.save(program, output)
    again = torch.export.load(output).module()

    def first_output(module):
        torch.manual_seed(0)
        result = module(*[tensor.clone() for tensor in inputs.values()])
        return result[0] if isinstance(result, (tuple, list)) else result

    expected, got = first_output(model), first_output(again)
    if expected.dim() == 0:
        try:
            expected.backward()
        except RuntimeError as error:
            fail(f"the model cannot be trained, in PyTorch neither: {str(error).splitlines()[0]}")
        model.zero_grad()
    model.load_state_dict(state)
    if not torch.allclose(expected, got, rtol=1e-4, atol=1e-5):
        fail(f"the exported program computes {got.flatten()[:3].tolist()}, the model {expected.flatten()[:3].tolist()}",
             "The model's forward depends on more than its inputs and weights.")
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="torchvision:NAME, timm:NAME, transformers:TYPE or module:function")
    parser.add_argument("--output", required=True, help="the file to write, .pt2")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an argument of the model")
    parser.add_argument("--batch-size", type=int, default=8, help="samples in a minibatch (default: 8)")
    parser.add_argument("--dynamic-batch", action="store_true", help="leave the number of samples open")
    parser.add_argument("--image", type=int, help="side of the square images (default: 224)")
    parser.add_argument("--channels", type=int, default=3, help="of the images (default: 3)")
    parser.add_argument("--tokens", type=int, default=64, help="length of texts, for transformers (default: 64)")
    parser.add_argument("--classes", type=int, help="labels lie below it (default: the model's num_classes, or 1000)")
    parser.add_argument("--loss", choices=[*LOSSES, "none"], default="cross_entropy",
                        help="none: the file has scores only, and --model FILE.pt2:loss=... adds one")
    parser.add_argument("--seed", type=int, default=0, help="of the model's first weights (default: 0)")
    arguments = parser.parse_args()
    options = {}
    for option in arguments.option:
        name, equals, value = option.partition("=")
        if not equals:
            fail(f"--option {option}: expected NAME=VALUE")
        options[name] = parsed(value)
    arguments.image_given = arguments.image is not None
    arguments.image = arguments.image or 224
    arguments.classes = arguments.classes or options.get("num_classes") or options.get("vocab_size") or 1000

    torch.manual_seed(arguments.seed)
    model, inputs = find_model(arguments.model, options)
    if inputs is None:
        inputs = example_inputs(arguments, arguments.model)
        if arguments.loss == "none":
            inputs.pop("labels")
            if arguments.model.startswith("transformers:"):
                model = as_plain_tuple(model, ["logits"])
        else:
            model = with_loss(model, arguments.loss, inputs)
    program = export(model, inputs, arguments.output, arguments.dynamic_batch)

    parameters = sum(p.numel() for p in model.parameters())
    operators = sum(node.op == "call_function" for node in program.graph.nodes)
    fields = ", ".join(f"{name} {str(t.dtype).replace('torch.', '')} {tuple(t.shape)}" for name, t in inputs.items())
    print(f"{arguments.output}: {parameters:,} parameters, {operators} operators, {os.path.getsize(arguments.output):,} bytes")
    print(f"inputs: {fields}")
    batch = next(iter(inputs.values())).shape[0]
    print(f"next: pipewright-profiler --model {arguments.output} --batch-size {batch}")


if __name__ == "__main__":
    main()
