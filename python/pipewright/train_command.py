"""`pipewright train`: from a model's name to trained weights. Every step is a command of its own, which is printed, and leaves a document.

Nothing is decided here that the programs do not: which way to train is what `compare` advises, the plan is the one that it wrote.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from pipewright import programs
from pipewright.command_line import MODEL_DEFAULTS
from pipewright.documents import Comparison, Exported
from pipewright.errors import Error, ProgramError, UsageError, nearest
from pipewright.programs import shown, spec, words_of
from pipewright.tokens import Tokens, is_saved

#: Rows of `compare`.
STRATEGIES = ("one device", "dp", "model-parallel", "straight", "hybrid", "flush", "interleaved", "zb-h1", "2bw", "paci", "predict")


@dataclasses.dataclass(frozen=True)
class Step:
    """A command; `document` is the file that it leaves. `printed`: of standard output, which is the document then."""
    name: str
    command: list[str]
    document: pathlib.Path
    printed: bool = False


def own_command() -> list[str]:
    """This package's command line."""
    beside = pathlib.Path(sys.executable).parent / "pipewright"
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "pipewright"]


def is_file_of_model(arguments: argparse.Namespace) -> bool:
    return ":" not in arguments.model and arguments.model.endswith(".pt2")


def model_file(arguments: argparse.Namespace) -> str:
    return arguments.model if is_file_of_model(arguments) else os.path.join(arguments.output, "model.pt2")


def has_tokenizer(arguments: argparse.Namespace) -> bool:
    """Whether the text is to be read with the tokenizer that belongs to the model's weights."""
    library, _, name = arguments.model.partition(":")
    return arguments.text is not None and library == "transformers" and (arguments.pretrained or is_saved(name))


def data_of(arguments: argparse.Namespace, tokens: Tokens | None = None) -> str:
    """The SPEC of the training data."""
    if arguments.data is not None:
        return arguments.data
    if tokens is None or tokens.format == "bytes":
        return spec("text", file=arguments.text, tokens=arguments.tokens)
    return spec("text", file=tokens.file, tokens=arguments.tokens, format=tokens.format, vocabulary=tokens.vocabulary)


def tokenize_step(arguments: argparse.Namespace) -> Step:
    name = arguments.model.partition(":")[2]
    return Step("tokenize", [*own_command(), "tokenize", name, "--text", arguments.text, "--output", os.path.join(arguments.output, "text.tokens"),
                             "--json"], pathlib.Path(arguments.output, "tokens.json"), printed=True)


def export_step(arguments: argparse.Namespace) -> Step:
    options = list(arguments.option)
    library = arguments.model.partition(":")[0]
    if arguments.text is not None and library == "transformers" and not has_tokenizer(arguments):
        if not any(option.startswith("vocab_size=") for option in options):
            options += ["vocab_size=256", "bos_token_id=none", "eos_token_id=none"]  # a token is a byte
    given = {name: getattr(arguments, name) for name, default in MODEL_DEFAULTS.items()
             if getattr(arguments, name) != default}
    return Step("export", [*own_command(), "export", arguments.model, *words_of({
        "option": options, "pretrained": arguments.pretrained, **given, "output": model_file(arguments), "json": True})],
                pathlib.Path(arguments.output, "export.json"), printed=True)


def profile_step(arguments: argparse.Namespace, data: str) -> Step:
    document = pathlib.Path(arguments.output, "profile.json")
    return Step("profile", [programs.path_of("profiler"), "profile", *words_of({
        "model": spec(model_file(arguments)), "batch_size": arguments.batch_size, "data": data, "device": arguments.device,
        "precision": arguments.precision, "threads": arguments.threads, "optimizer": arguments.optimizer, "output": document})], document)


def update_of(settings: Sequence[dict]) -> dict:
    """What the planner is told of the run's update, by whose tensors for each weight it counts memory: `settings` of launch --print-config."""
    value = {one["setting"]: one["value"] for one in settings}
    plain = value["optimizer"] == "sgd" and value["momentum"] == 0
    return {**({"optimizer_slots": 0} if plain else {"optimizer": value["optimizer"]}),
            "delay_correction": None if value["delay-correction"] == "none" else value["delay-correction"]}


def compare_step(arguments: argparse.Namespace, update: dict) -> Step:
    return Step("compare", [programs.path_of("optimizer"), "compare", *words_of({
        "gpus": arguments.gpus, **links_of(arguments), "memory": arguments.memory, **update,
        "output": os.path.join(arguments.output, "plans"), "report": [os.path.join(arguments.output, name) for name in ("compare.md", "compare.html")],
        "json": True})],
                pathlib.Path(arguments.output, "compare.json"), printed=True)


def links_of(arguments: argparse.Namespace) -> dict:
    """What prices a plan beside itself: its profile, and the links that it was asked for."""
    return {"profile": os.path.join(arguments.output, "profile.json"), "topology": arguments.topology, "bandwidths": arguments.bandwidths,
            "latency": arguments.latency}


def plan_step(arguments: argparse.Namespace, plan: str, update: dict) -> Step:
    return Step("plan", [programs.path_of("optimizer"), "show", *words_of({
        "plan": plan, **links_of(arguments), **update, "report": os.path.join(arguments.output, "plan.html")})], pathlib.Path(plan))


def launch_step(arguments: argparse.Namespace, data: str, plan: str | None, rest: Sequence[str]) -> Step:
    folder = os.path.join(arguments.output, "run")
    return Step("train", [programs.path_of("runtime"), "launch", *words_of({
        "model": spec(model_file(arguments)), "plan": plan, "data": data, "batch_size": arguments.batch_size, "device": arguments.device,
        "precision": arguments.precision, "threads": arguments.threads, "optimizer": arguments.optimizer, "seed": arguments.seed,
        "output": folder}), *rest], pathlib.Path(folder, "summary.json"))


def report_step(arguments: argparse.Namespace) -> Step:
    page = os.path.join(arguments.output, "run.html")
    return Step("report", [programs.path_of("runtime"), "report", os.path.join(arguments.output, "run"), *words_of({
        **links_of(arguments), "output": page})], pathlib.Path(page))


def check(arguments: argparse.Namespace) -> None:
    """What can be known to go wrong before anything starts. UsageError."""
    if arguments.strategy is not None and arguments.strategy not in STRATEGIES:
        raise UsageError(f"--strategy '{arguments.strategy}' is not known", nearest(arguments.strategy, STRATEGIES) or f"Known: {', '.join(STRATEGIES)}.")
    if arguments.text is not None and not os.path.isfile(arguments.text):
        raise UsageError(f"--text {arguments.text}: there is no such file", "Name a text that is there; its bytes, or its model's tokens, are trained on.")
    if is_file_of_model(arguments) and not os.path.isfile(arguments.model):
        raise UsageError(f"there is no file {arguments.model}", "pipewright export MODEL --output FILE.pt2 makes one.")
    if is_file_of_model(arguments) and arguments.batch_size is None:
        raise UsageError("--batch-size is missing", f"Give that which {arguments.model} was exported with: `pipewright export` printed it, with the inputs.")
    if not is_file_of_model(arguments) and ":" not in arguments.model:
        raise UsageError(f"'{arguments.model}' is no model",
                         "Give transformers:TYPE, transformers:FOLDER, torchvision:NAME, timm:NAME, module:function, file.py:function or FILE.pt2.")
    if os.path.exists(arguments.output) and not os.path.isdir(arguments.output):
        raise UsageError(f"--output {arguments.output} is there, and no folder")
    if not arguments.plan_only:
        cores = len(os.sched_getaffinity(0))
        if arguments.device is None and arguments.gpus is not None and arguments.gpus > cores:
            raise UsageError(f"--gpus {arguments.gpus}: without --device cuda a rank is a core, and this process may use {cores}",
                             f"--gpus {cores}; or --plan-only, for a plan of another machine.")
        if not arguments.yes and not sys.stdin.isatty():
            raise UsageError("nobody can be asked whether to train under the plan: standard input is no terminal", "Add --yes, or --plan-only.")


def quiet(command: list[str]) -> str:
    """What a command that is not shown prints. ProgramError without a message: the program has said why."""
    done = subprocess.run(command, env=programs.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ProgramError(command, done.returncode, "")
    return done.stdout


class Door:
    """Runs steps one after the other, and tells of each."""

    def __init__(self, steps: int):
        self.steps, self.done = steps, 0

    def take(self, step: Step, live: bool = False) -> str:
        """Runs the step. Returns what it printed, unless `live`, where it prints to the terminal by itself. ProgramError."""
        self.done += 1
        print(f"\n{self.done} of {self.steps}, {step.name}: {shown(step.command)}", flush=True)
        ran = subprocess.run(step.command, env=programs.environment(), stdin=subprocess.DEVNULL, stdout=None if live else subprocess.PIPE, text=True,
                             check=False)
        if ran.returncode != 0:
            raise ProgramError(step.command, ran.returncode, f"step {self.done} of {self.steps}, {step.name}, ended with exit code {ran.returncode}",
                               "What is wrong stands above; the command of the step repeats it alone.")
        if step.printed:
            step.document.write_text(ran.stdout, encoding="utf-8")
        return ran.stdout or ""


def told(text: str) -> None:
    print("\n".join("  " + line if line else "" for line in text.splitlines()), flush=True)


def train(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """All steps. `rest`: further options, of `pipewright-runtime launch`."""
    if arguments.output is None:
        arguments.output = os.path.join("runs", os.path.basename(arguments.model.rpartition(":")[2].rstrip("/")).removesuffix(".pt2"))
    check(arguments)
    launch = launch_step(arguments, data_of(arguments), None, [one for one in rest if one != "--json"])
    update = update_of(json.loads(quiet([*launch.command, "--print-config", "--json"])))
    quiet([*compare_step(arguments, update).command, "--print-config"])
    os.makedirs(arguments.output, exist_ok=True)
    door = Door(3 + (not is_file_of_model(arguments)) + has_tokenizer(arguments) + 2 * (not arguments.plan_only))

    tokens, exported = None, None
    if has_tokenizer(arguments):
        step = tokenize_step(arguments)
        tokens = Tokens.of(json.loads(door.take(step)), str(step.document))
        told(f"{step.document}: {tokens.tokens:,} tokens of {tokens.vocabulary:,} in {tokens.file}")
    data = data_of(arguments, tokens)
    if not is_file_of_model(arguments):
        step = export_step(arguments)
        exported = Exported.of(json.loads(door.take(step)), str(step.document))
        arguments.batch_size = exported.batch_size
        told(f"{step.document}: {exported.type}, {exported.parameters:,} parameters, in {exported.file}")
        if arguments.model.startswith("transformers:") and not arguments.pretrained and not has_tokenizer(arguments):
            told("its weights are first values, of a configuration; trained ones: transformers:FOLDER or --pretrained")
        if exported.gpus > 0 and arguments.device is None:
            told(f"this machine has {exported.gpus} GPUs; without --device cuda ranks are cores")
        if arguments.text is not None and exported.type.endswith("ForMaskedLM"):
            raise Error(f"{exported.type} reads the tokens that it is to predict: --text is for models that predict the next one",
                        f"--data {spec('masked-text', file=arguments.text, tokens=arguments.tokens)} --option vocab_size=257")

    step = profile_step(arguments, data)
    told(door.take(step).partition("\n\n")[0])
    told(f"{step.document}")

    step = compare_step(arguments, update)
    comparison = Comparison.of(json.loads(door.take(step)), str(step.document))
    told(pathlib.Path(arguments.output, "compare.md").read_text(encoding="utf-8").partition("\n## ")[0].rstrip())
    told(f"{step.document}, {os.path.join(arguments.output, 'compare.html')}")

    chosen = comparison.contender(arguments.strategy)
    step = plan_step(arguments, chosen.plan, update)
    told(door.take(step).rstrip())
    told(f"{step.document}, {os.path.join(arguments.output, 'plan.html')}")

    step = launch_step(arguments, data, chosen.plan, rest)
    if arguments.plan_only:
        print(f"\ntrain under it: {shown(step.command)}")
        return
    if not arguments.yes and input("\nTrain under this plan? [Y/n] ").strip().lower() not in ("", "y", "yes"):
        print(f"train under it later: {shown(step.command)}")
        return
    door.take(step, live=True)
    folder = step.document.parent
    told(f"{step.document}, {folder / 'model.safetensors'}")
    step = report_step(arguments)
    door.take(step)
    told(f"{step.document}: what it did, and what was predicted")
    if exported is not None and exported.config is not None:
        (folder / "config.json").write_text(json.dumps(exported.config, indent=2) + "\n", encoding="utf-8")
        print(f'\nin Python: transformers.{exported.type}.from_pretrained("{folder}")')
    else:
        print(f'\nin Python: pipewright.load("{folder}", model)')
