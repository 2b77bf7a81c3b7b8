#!/usr/bin/env python3
"""Trains models of torchvision and transformers five steps in PyTorch and, exported, in Pipewright; compares the losses.

    python tests/models/pt2/compare_models.py --programs build/release/bin [NAME ...]

Small configurations, no dropout (its numbers are Pipewright's own). Prints a table; fails if a model that both train
differs by more than 1e-4 of its loss.
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
    "alexnet vgg11 vgg11_bn vgg16 resnet18 resnet34 resnet50 resnext50_32x4d wide_resnet50_2 squeezenet1_0 squeezenet1_1 "
    "densenet121 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 shufflenet_v2_x0_5 "
    "shufflenet_v2_x1_0 efficientnet_b0 efficientnet_v2_s convnext_tiny regnet_x_400mf regnet_y_400mf swin_t swin_v2_t "
    "maxvit_t").split()}
MODELS["maxvit_t"] = vision("maxvit_t", 224)
MODELS["googlenet"] = vision("googlenet", aux_logits=False, init_weights=False)
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


def compare(make, programs, folder, batch):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, fields = make()
    data = {name: draw(batch * STEPS) for name, draw in fields.items()}
    save_file({name: tensor.clone() for name, tensor in data.items()}, folder / "data.safetensors")
    first = {name: tensor[:batch] for name, tensor in data.items()}
    model = export_model.with_loss(without_chance(model).train(), "cross_entropy", first)
    program = export_model.export(model, first, folder / "model.pt2")

    command = [programs / "pipewright-runtime", "train", "--model", folder / "model.pt2", "--data",
               f"tensors:file={folder / 'data.safetensors'}", "--batch-size", batch, "--minibatches", STEPS,
               "--learning-rate", RATE, "--output", folder / "run"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[0])
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    got = [line["loss"] for line in lines if "loss" in line and "minibatch" in line][:STEPS]

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    expected = []
    for step in range(STEPS):
        loss = model(*[tensor[step * batch:(step + 1) * batch].clone() for tensor in data.values()])[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    difference = max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(expected, got, strict=True))
    return sum(node.op == "call_function" for node in program.graph.nodes), expected[-1], difference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in arguments.names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                operators, loss, difference = compare(MODELS[name], arguments.programs, pathlib.Path(folder),
                                                      arguments.batch_size)
                verdict = "ok" if difference <= 1e-4 else "DIFFERS"
                print(f"{name:22} {operators:5} operators  fifth loss {loss:.5f}  difference {difference:.1e}  {verdict}",
                      flush=True)
                failed += verdict != "ok"
            except (Exception, SystemExit) as error:  # the table goes on
                print(f"{name:22} not compared: {str(error).splitlines()[0] if str(error) else type(error)}", flush=True)
                failed += 1
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
