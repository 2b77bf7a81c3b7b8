#!/usr/bin/env python3
"""Trains models of torchvision and transformers five steps in PyTorch and, exported, in Pipewright; compares the losses.

    python tests/models/pt2/compare_models.py --programs build/release/bin [--output table.md] [NAME ...]

Small configurations, no dropout (its numbers are Pipewright's own). Each model trains on one device, and then in two and
in three stages that update after every minibatch. Prints a table; fails if a loss on one device differs from PyTorch's by
more than 1e-4 of it, or a loss of a pipeline from that of one device by more than 1e-6, unless `pipewright-runtime verify`
says that it is the serial reference's to the bit and no further off than what rounding does to one device (a cut regroups
sums of three or more gradients, and a batch norm of four values makes much of it).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
import export_model  # noqa: E402

STEPS, RATE = 5, 0.01


def vision(name, image=64, **options):
    def make():
        import torchvision

        model = torchvision.models.get_model(name, num_classes=10, **options)
        return model, {"images": lambda n: torch.randn(n, 3, image, image), "labels": lambda n: torch.randint(0, 10, (n,))}

    return make


def language(kind, name, **options):
    def make():
        import transformers

        config = transformers.AutoConfig.for_model(name, vocab_size=100, **options)
        config.use_cache = False
        model = getattr(transformers, kind).from_config(config)
        tokens = lambda n: torch.randint(0, 100, (n, 16))  # noqa: E731
        return model, {"tokens": tokens, "labels": tokens}

    return make


def image_transformer():
    import transformers

    config = transformers.ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                                    image_size=32, patch_size=8, num_labels=10)
    return transformers.ViTForImageClassification(config), {
        "images": lambda n: torch.randn(n, 3, 32, 32), "labels": lambda n: torch.randint(0, 10, (n,))}


MODELS = {name: vision(name) for name in (
    "alexnet vgg11 vgg11_bn vgg13 vgg16 resnet18 resnet34 resnet50 resnext50_32x4d wide_resnet50_2 squeezenet1_0 squeezenet1_1 "
    "densenet121 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 shufflenet_v2_x0_5 "
    "shufflenet_v2_x1_0 efficientnet_b0 efficientnet_v2_s convnext_tiny regnet_x_400mf regnet_y_400mf swin_t swin_v2_t "
    "maxvit_t").split()}
MODELS["maxvit_t"] = vision("maxvit_t", 224)
MODELS["googlenet"] = vision("googlenet", init_weights=False)
MODELS["inception_v3"] = vision("inception_v3", 96, aux_logits=False, init_weights=False)
MODELS["vit_b_16"] = vision("vit_b_16", image_size=64)
MODELS["gpt2"] = language("AutoModelForCausalLM", "gpt2", n_layer=2, n_embd=32, n_head=4, n_positions=32)
MODELS["llama"] = language("AutoModelForCausalLM", "llama", num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
                           num_key_value_heads=2, intermediate_size=64)
MODELS["bert"] = language("AutoModelForMaskedLM", "bert", num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
                          intermediate_size=64)
MODELS["vit (transformers)"] = image_transformer


def without_chance(model):
    for module in model.modules():
        if "Dropout" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for name in ("dropout_p", "attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(next((line for line in lines if "error:" in line), lines[0]))


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "minibatch" in line]


def largest_difference(expected, got):
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(expected, got, strict=True))


def train_in_python(model, data, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        loss = model(*[tensor[step * batch:(step + 1) * batch].clone() for tensor in data.values()])[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(make, programs, folder, batch):
    """Operators, parameters, the fifth loss, and how far one device, two and three stages are off."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, fields = make()
    data = {name: draw(batch * STEPS) for name, draw in fields.items()}
    save_file({name: tensor.clone() for name, tensor in data.items()}, folder / "data.safetensors")
    first = {name: tensor[:batch] for name, tensor in data.items()}
    model = export_model.with_loss(without_chance(model).train(), "cross_entropy", first)
    program = export_model.export(model, first, folder / "model.pt2")
    operators = sum(node.op == "call_function" for node in program.graph.nodes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    del program

    what = ["--model", folder / "model.pt2", "--batch-size", batch]
    how = ["--data", f"tensors:file={folder / 'data.safetensors'}", "--minibatches", STEPS, "--learning-rate", RATE]
    run(programs / "pipewright-runtime", "train", *what, *how, "--output", folder / "one")
    one = losses_of(folder / "one")
    expected = train_in_python(model, data, batch)
    del model

    run(programs / "pipewright-profiler", *what, "--warmup", 0, "--repeats", 1, "--output", folder / "profile.json")
    differences = [largest_difference(expected, one)]
    for stages in (2, 3):
        run(programs / "pipewright-optimizer", "plan", "--profile", folder / "profile.json", "--gpus", stages, "--strategy",
            "straight", "--use-all-devices", "--schedule", "1f1b-flush", "--weights", "flush", "--microbatches", 1,
            "--bandwidths", "100GB/s", "--latency", "0us", "--output", folder)
        plan = json.loads((folder / f"gpus={stages}.json").read_text())
        if len(plan["stages"]) != stages:
            raise RuntimeError(f"planned {len(plan['stages'])} stages instead of {stages}")
        run(programs / "pipewright-runtime", "launch", "--timeout", "600s", *what, *how, "--plan", folder / f"gpus={stages}.json", "--output",
            folder / f"stages{stages}")
        difference = largest_difference(one, losses_of(folder / f"stages{stages}"))
        if difference > 1e-6:
            run(programs / "pipewright-runtime", "verify", "--timeout", "600s", *what, *how, "--plan", folder / f"gpus={stages}.json")
        differences.append(difference)
    return operators, parameters, expected[-1], differences


HEADER = ("| model | parameters | operators | loss of the fifth step | one device, from PyTorch | two stages, from one device "
          "| three stages |\n| --- | --- | --- | --- | --- | --- | --- |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--output", type=pathlib.Path, help="the table, as Markdown")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [HEADER], 0
    for name in arguments.names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                operators, parameters, loss, differences = compare(MODELS[name], arguments.programs, pathlib.Path(folder),
                                                                   arguments.batch_size)
                equal = differences[0] <= 1e-4  # of the others verify has said so
                texts = [f"{difference:.1e}" if difference else "0" for difference in differences]
                rows.append(f"| {name} | {parameters:,} | {operators} | {loss:.5f} | " + " | ".join(texts) + " |")
                print(f"{name:22} {operators:5} operators  fifth loss {loss:.5f}  one device, two, three stages: "
                      f"{', '.join(texts):24}  {'ok' if equal else 'DIFFERS'}", flush=True)
                failed += not equal
            except (Exception, SystemExit) as error:  # the table goes on
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                rows.append(f"| {name} | not compared: {reason} | | | | | |")
                print(f"{name:22} not compared: {reason}", flush=True)
                failed += 1
        if arguments.output:
            arguments.output.write_text("\n".join(rows) + "\n")
    print(f"{len(rows) - 1 - failed} of {len(rows) - 1} models equal")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
