"""The console command `pipewright`."""
from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from pipewright.errors import Error

MODEL_DEFAULTS = {"batch_size": 8, "image": 224, "channels": 3, "tokens": 64, "classes": None, "loss": "cross_entropy", "seed": 0}
MODELS = """
    pipewright export torchvision:resnet18 --option num_classes=10 --image 64 --batch-size 32 --output resnet18.pt2
    pipewright export timm:vit_tiny_patch16_224 --option img_size=64 --option num_classes=10 --image 64 --output vit.pt2
    pipewright export transformers:gpt2 --option n_layer=4 --tokens 64 --output gpt2.pt2
    pipewright export transformers:distilbert --classes 4 --output classifier.pt2
    pipewright export transformers:saved/my-bert --output mine.pt2
    pipewright export my_models:make_model --output mine.pt2

A function of your own, `module:function` or `file.py:function`, returns the model, or the model and its example inputs: a dict of tensors by
the names of the forward's arguments, or by other names in the order of these. Modules stay in the mode, train or eval, that they are in; a
model that is wholly in eval mode is put into train mode. Needs torch, and what the model comes from.
"""
TRAIN = """
    pipewright train transformers:gpt2 --option n_layer=4 --text shakespeare.txt --gpus 2 --learning-rate 0.1
    pipewright train torchvision:resnet18 --image 64 --classes 10 --data synthetic-images:image=64,channels=3 --gpus 2 --yes
    pipewright train net.py:make_model --data fashion-mnist --batch-size 16 --gpus 2 --plan-only

Exports the model, profiles it, compares the ways to train it on the devices, shows the advised plan, asks, and trains. Each step is a command,
which is printed, and leaves its document in the folder of --output. Further options are those of `pipewright-runtime launch`.
"""


def add_model_options(parser: argparse.ArgumentParser, more: str = "") -> None:
    """What makes a model and its example inputs. `more`: what else the model may be."""
    parser.add_argument("model", help="torchvision:NAME, timm:NAME, transformers:TYPE, transformers:FOLDER, module:function or file.py:function" + more)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an argument of the model (default: none)")
    parser.add_argument("--pretrained", action="store_true", help="with the weights that its library has in its local cache, or fetches")
    parser.add_argument("--batch-size", type=int, help="samples in a minibatch (default: 8; of FILE.pt2 that of its export, to be given)")
    parser.add_argument("--image", type=int, help="side of the square images (default: 224)")
    parser.add_argument("--channels", type=int, help="of the images (default: 3)")
    parser.add_argument("--tokens", type=int, help="length of texts (default: 64)")
    parser.add_argument("--classes", type=int, help="of the classifier (default: as its library makes it; of transformers, a language model)")
    parser.add_argument("--loss", choices=["cross_entropy", "mse", "none"],
                        help="none: the file has scores only, and --model FILE.pt2:loss=... adds one (default: cross_entropy)")
    parser.add_argument("--seed", type=int, help="of the model's first weights (default: 0)")
    parser.set_defaults(**MODEL_DEFAULTS)


def parsers() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pipewright", description="Pipeline-parallel training of PyTorch models.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text + "\n" + examples, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)

    train = add("train", "from a model's name to trained weights: export, profile, compare, plan, launch", TRAIN)
    add_model_options(train, "; or FILE.pt2, as `pipewright export` writes it: then nothing is exported")
    train.set_defaults(batch_size=None)  # that which the model is exported with
    data = train.add_mutually_exclusive_group(required=True)
    data.add_argument("--text", metavar="FILE", help="a text, of which the next token is predicted: its bytes, or tokens of the model's tokenizer")
    data.add_argument("--data", metavar="SPEC", help="a data set (docs/data.md)")
    devices = train.add_mutually_exclusive_group(required=True)
    devices.add_argument("--gpus", type=int, metavar="N", help="devices to plan for, one rank each")
    devices.add_argument("--topology", metavar="FILE", help="the same with links as `pipewright-runtime probe` measures them")
    train.add_argument("--device", help="cuda: ranks are GPUs (default: ranks are cores)")
    train.add_argument("--bandwidths", help="of a link, per direction (default: that of pipewright-optimizer compare)")
    train.add_argument("--latency", help="of one message (default: likewise)")
    train.add_argument("--memory", help="of a device, e.g. 16GiB (default: no limit)")
    train.add_argument("--precision", help="float32, tf32 or bfloat16 (default: float32)")
    train.add_argument("--threads", help="compute threads of a rank (default: 1)")
    train.add_argument("--optimizer", help="sgd, adam, adamw, nadam, lion, muon, adafactor (default: sgd)")
    train.add_argument("--strategy", help="train another row of the comparison than the advised one, e.g. straight")
    train.add_argument("--output", help="folder of all documents (default: runs/MODEL)")
    train.add_argument("--plan-only", action="store_true", help="end before training")
    train.add_argument("--yes", action="store_true", help="train without asking")

    export = add("export", "a PyTorch model, with its loss, as a file that Pipewright trains", MODELS)
    add_model_options(export)
    export.add_argument("--output", required=True, help="the file to write, .pt2")
    export.add_argument("--dynamic-batch", action="store_true", help="leave the number of samples open")
    export.add_argument("--json", action="store_true", help="print what was written as JSON")

    tokenize = add("tokenize", "a text as tokens of a model of transformers, for --data text", "")
    tokenize.add_argument("name", help="folder of the tokenizer, or its name in the local cache")
    tokenize.add_argument("--text", required=True, metavar="FILE", help="UTF-8")
    tokenize.add_argument("--output", required=True, help="the file to write")
    tokenize.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser


def export(arguments: argparse.Namespace) -> None:
    from pipewright import exporting

    made = exporting.run(arguments)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(made), indent=2))
        return
    print(f"{made.file}: {made.parameters:,} parameters, {made.operators} operators, {made.file_bytes:,} bytes")
    print("inputs: " + ", ".join(f"{name} {kind}" for name, kind in made.inputs.items()))
    if still := made.evaluating:
        print(f"in evaluation mode: {', '.join(still[:5])}" + (f" and {len(still) - 5} more" if len(still) > 5 else ""))
    print(f"next: pipewright-profiler --model {made.file} --batch-size {made.batch_size}")


def tokenize(arguments: argparse.Namespace) -> None:
    from pipewright import tokens

    made = tokens.tokenize(arguments.name, arguments.text, arguments.output)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(made), indent=2))
    else:
        print(f"{made.file}: {made.tokens:,} tokens of {made.vocabulary:,}, {made.format}")


def main(words: Sequence[str] | None = None) -> None:
    """Runs `words`, default those of the process; ends it with the exit code of the program that failed, or of the Error, after a message."""
    parser = parsers()
    arguments, rest = parser.parse_known_args(words)
    if rest and arguments.command != "train":
        parser.error(f"unknown options: {' '.join(rest)}")
    try:
        if arguments.command == "train":
            from pipewright import train_command

            train_command.train(arguments, rest)
        else:
            {"export": export, "tokenize": tokenize}[arguments.command](arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except Error as error:
        if error.args[0]:
            print(f"pipewright: error: {error}", file=sys.stderr)
        sys.exit(max(error.returncode, 1))  # below 0: a signal that ended a program
