#!/usr/bin/env python3
"""Trains what a run of Pipewright has trained, in plain PyTorch: docs/verifying.md.

    pipewright-runtime batches --config runs/mine/run.json --output batches.safetensors
    scripts/reference.py --run runs/mine --batches batches.safetensors --output reference
    pipewright-runtime verify --run runs/mine --against reference

It trains the run's exported program from the program's own weights (or the run's initial weights), on these minibatches, with
torch.optim and the run's settings and learning rates, and writes losses.json and weights.safetensors. With a MODEL, as
scripts/export_model.py takes it, that model is trained instead of the program, from the same weights. With --processes N it is
DistributedDataParallel over gloo: each update is the mean over its minibatches, as in a run of N replicas.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP's advice
try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    sys.exit(f"reference.py: error: this Python has no {error.name}\n  pip install torch safetensors, and run this with that Python.")


def fail(message, remedy=""):
    sys.exit(f"reference.py: error: {message}" + (f"\n  {remedy}" if remedy else ""))


def read_json(file):
    try:
        with open(file, encoding="utf-8") as text:
            return json.load(text)
    except (OSError, ValueError) as error:
        fail(f"{file}: {error}", "--run is the folder of a finished run.")


class Run:
    """What a run folder says of its training, as far as plain PyTorch can do the same; else a refusal."""

    def __init__(self, folder):
        self.settings = read_json(os.path.join(folder, "run.json"))
        plan = read_json(os.path.join(folder, "plan.json"))
        if os.path.exists(os.path.join(folder, "changes.json")):
            fail(f"{folder}: its plan has changed on the way", "Give a run of one plan.")
        if self.settings["resume"]:
            fail(f"{folder}: the run went on from a checkpoint", "Give one that began at its beginning.")
        if self.settings["sync"] != "all-reduce":
            fail(f"{folder}: sync '{self.settings['sync']}' averages weights; PyTorch's DDP averages gradients", "Train with --sync all-reduce.")
        self.round_length = self.minibatches_of_update(folder, plan)
        self.by_labels = self.settings.get("loss_average", "minibatches") == "labels"
        self.clips = self.settings["gradient_clipping_norm"]
        if self.clips and plan["weights"] != "flush" and len(plan["stages"]) > 1 and not plan.get("tied_parameters"):
            fail(f"{folder}: each stage clips by a norm of its own under weights '{plan['weights']}'", "Train with weights 'flush', or without clipping.")
        self.lines = []  # of minibatches
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as metrics:
            for line in map(json.loads, metrics):
                if "minibatch" in line:
                    self.lines.append(line)

    def minibatches_of_update(self, folder, plan):
        stages = plan["stages"]
        lengths = set()
        for stage in stages:
            cycle = 1 if len(stage.get("split", [])) > 1 else sum(stage.get("shares", [])) or len(stage["ranks"])
            lengths.add(plan["microbatches"] if plan["weights"] in ("flush", "2bw") else self.settings["gradient_accumulation"] * cycle)
        old = plan["weights"] == "2bw" or plan["weights"] != "flush" and plan["schedule"] != "model-parallel" and stages[0]["in_flight"] > 1
        if len(lengths) > 1 or old and len(stages) > 1:
            why = "its stages update after different numbers of minibatches" if len(lengths) > 1 else "gradients are taken at older weights"
            fail(f"{folder}: weights '{plan['weights']}', {why}; plain PyTorch has no such training",
                 "Give a run with weights 'flush'. This one is compared with its definition by verify --run alone.")
        if self.settings["learning_rate_scaling"] != "none" and len(stages) > 1:
            fail(f"{folder}: learning_rate_scaling gives each stage a rate of its own")
        return lengths.pop()

    def rounds(self, minibatches):
        """The minibatches of each update: those with equal k // round_length within an epoch."""
        rounds = {}
        for line in self.lines[:minibatches]:
            k = line["minibatch"]
            rounds.setdefault((line["epoch"], k // self.round_length), []).append(k)
        return list(rounds.values())

    def drains_behind(self, minibatch):
        """Replicas average their statistics at the end of an epoch."""
        return minibatch + 1 == len(self.lines) or self.lines[minibatch]["epoch"] != self.lines[minibatch + 1]["epoch"]

    def optimizer(self, named):
        """torch.optim's, each parameter a group of its own, and what its rate is multiplied by."""
        asked = self.settings["optimizer"]
        groups, scales = [], []
        for name, parameter in named.items():
            scale, decay = 1.0, asked["weight_decay"]
            for group in asked.get("parameter_groups", []):
                if re.search(group["parameters"], name):
                    scale = group.get("learning_rate_scale", scale)
                    decay = group.get("weight_decay", decay)
            if asked.get("no_decay") and re.search(asked["no_decay"], name):
                decay = 0.0
            groups.append({"params": [parameter], "weight_decay": decay})
            scales.append(scale)
        rate = asked["learning_rate"]
        if asked["name"] == "sgd":
            made = torch.optim.SGD(groups, lr=rate, momentum=asked["momentum"], nesterov=asked["nesterov"])
        elif asked["name"] in ("adam", "adamw"):
            kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[asked["name"]]
            made = kind(groups, lr=rate, betas=(asked["beta1"], asked["beta2"]), eps=asked["epsilon"])
        elif asked["name"] == "nadam":
            made = torch.optim.NAdam(groups, lr=rate, betas=(asked["beta1"], asked["beta2"]), eps=asked["epsilon"], decoupled_weight_decay=True)
        else:
            fail(f"optimizer '{asked['name']}' is none that this script knows")
        return made, scales


def children_of(spec):
    return spec.children_specs if hasattr(spec, "children_specs") else spec.children()


class Program:
    """The exported program that the run's SPEC names: FILE.pt2:KEY=VALUE,..."""

    def __init__(self, spec):
        file, marker, rest = spec.partition(".pt2")
        if not marker:
            fail(f"model '{spec}' is no exported program", "PyTorch has no built-in models of Pipewright's: export one, scripts/export_model.py.")
        options = dict(option.partition("=")[::2] for option in rest.lstrip(":").split(",") if option)
        for switch in ("dead_nodes", "shared_values", "constants"):
            options.pop(switch, None)
        self.loss = options.pop("loss", "program")
        self.output = int(options.pop("output", 0))
        self.labels = options.pop("labels", "targets" if self.loss == "mse" else "labels")
        program = torch.export.load(file + marker)
        self.refuse_draws(program)
        inputs = list(program.graph_signature.user_inputs)
        self.fields = [options.pop(name, options.pop(str(i), name)) for i, name in enumerate(inputs)]
        if options:
            fail(f"model '{spec}': '{next(iter(options))}' is neither an option that this script knows nor an input of the program")
        self.module = program.module()
        positional, named = children_of(program.call_spec.in_spec)
        self.positional, self.named = positional.num_leaves, list(named.context or [])

    def call(self, module, batch):
        """`module`: of the program, or another that is called as the program was exported."""
        tensors = [batch[name] for name in self.fields]
        return module(*tensors[:self.positional], **dict(zip(self.named, tensors[self.positional:])))

    @staticmethod
    def refuse_draws(program):
        for module in program.graph_module.modules():
            for node in getattr(getattr(module, "graph", None), "nodes", []):
                if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
                    continue
                arguments = {argument.name: value for argument, value in zip(node.target._schema.arguments, node.args)} | dict(node.kwargs)
                if arguments.get("p", arguments.get("dropout_p", arguments.get("dropout", 0.0 if "scaled_dot" in str(node.target) else 1.0))) == 0 or arguments.get("train") is False:
                    continue
                fail(f"the program draws random numbers ({node.target}): PyTorch draws others than Pipewright, which draws by minibatch and node",
                     "Export the model with dropout=0 for the comparison.")

    def loss_of(self, output, batch):
        tensors = [output] if isinstance(output, torch.Tensor) else [one for one in output if isinstance(one, torch.Tensor)]
        found = tensors[self.output]
        if self.loss == "program":
            return found.reshape(())
        labels = batch[self.labels]
        if self.loss == "mse":
            return torch.nn.functional.mse_loss(found, labels)
        if labels.shape == found.shape[:1] + found.shape[2:]:
            return torch.nn.functional.cross_entropy(found, labels)
        return torch.nn.functional.cross_entropy(found.flatten(0, -2), labels.flatten())


def other_model(arguments, batch):
    """A model as export_model.py takes it, that is called as it was exported."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    from pipewright import exporting
    from pipewright.errors import Error

    try:
        options = exporting.options_of(arguments.option)
        classes = arguments.classes or options.get("num_classes") or options.get("num_labels")
        model, inputs = exporting.find_model(arguments.model, options, classes)
        if inputs is None:
            first = next(iter(batch.values()))
            shape = argparse.Namespace(batch_size=first.shape[0], tokens=first.shape[-1], image=first.shape[-1],
                                       channels=first.shape[1] if first.dim() == 4 else 1, classes=classes)
            inputs = exporting.example_inputs(shape, model)
            model = exporting.with_loss(model, arguments.loss, inputs)
    except Error as error:
        fail(error.args[0], error.remedy)
    return exporting.in_training(model)


def first_weights(module, program, initial):
    """The same on both sides: the program's own, or the run's initial weights."""
    weights = {name: tensor.clone() for name, tensor in program.module.state_dict().items()}
    if initial:
        given = load_file(initial.removesuffix(":match=shared"))
        weights |= {name: tensor for name, tensor in given.items() if name in weights}
    missing, unknown = module.load_state_dict(weights, strict=False)
    if unknown or any(name in dict(module.named_parameters()) for name in missing):
        fail(f"the model's weights are not those of the run's program: {', '.join([*missing, *unknown][:4])}",
             "Give the model that the program was exported from, with the same --option.")


def save_weights(module, file, minibatches):
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, file, {"format": "pt", "minibatches": str(minibatches)})


def average_statistics(module, processes):
    for buffer in module.buffers():
        if buffer.is_floating_point():
            torch.distributed.all_reduce(buffer)
            buffer /= processes


def train(rank, arguments, meeting):
    torch.set_num_threads(arguments.threads)
    run = Run(arguments.run)
    program = Program(run.settings["model"])
    if rank == 0 and run.lines and arguments.processes > run.round_length:
        print(f"reference.py: warning: updates of {run.round_length} minibatches keep {arguments.processes} processes waiting", file=sys.stderr)
    fields = load_file(arguments.batches)
    absent = [name for name in program.fields if name not in fields]
    if absent:
        fail(f"{arguments.batches}: has no field '{absent[0]}', which the program reads", f"It has {', '.join(fields)}: write it with pipewright-runtime batches.")
    count = min(len(run.lines), len(next(iter(fields.values()))))

    def batches(k):
        return {name: tensor[k] for name, tensor in fields.items()}

    module = other_model(arguments, batches(0)) if arguments.model else program.module
    first_weights(module, program, run.settings["initial_weights"])
    called = module
    if arguments.processes > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=arguments.processes,
                                             timeout=datetime.timedelta(seconds=120))
        # Each replica keeps its statistics until the run drains, as Pipewright does.
        called = torch.nn.parallel.DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    optimizer, scales = run.optimizer(trained)
    losses = torch.zeros(count, dtype=torch.float64)
    autocast = torch.autocast("cpu", torch.bfloat16) if run.settings["precision"] == "bfloat16" else contextlib.nullcontext()

    def backward(k, factor):
        batch = batches(k)
        with autocast:
            loss = program.loss_of(program.call(called, batch), batch)
        (loss * factor).backward()
        return loss.item()

    def idle(k):
        """A part in the sum of gradients that adds nothing, and leaves the statistics as they were."""
        state = {name: buffer.clone() for name, buffer in module.named_buffers()}
        backward(k, 0.0)
        for name, buffer in module.named_buffers():
            buffer.copy_(state[name])

    def together(ks):
        """The update of all samples of these minibatches as one batch, and the loss of each."""
        parts = [batches(k) for k in ks]
        state = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with autocast:
            joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            program.loss_of(program.call(called, joined), joined).backward()
            changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, state[name])]
            if changed and len(ks) > 1:
                fail(f"the model writes '{changed[0]}' once a minibatch, and loss_average 'labels' is computed here of all minibatches of an update as one",
                     "Give a run with --loss-average minibatches.")
            with torch.no_grad():
                return [program.loss_of(program.call(called, part), part).item() for part in parts]

    for ks in run.rounds(count):
        own = [k for i, k in enumerate(ks) if (ks[0] + i) % arguments.processes == rank]
        if run.by_labels:
            losses[ks] = torch.tensor(together(ks), dtype=torch.float64)
        for i, k in enumerate([] if run.by_labels else own):
            last = i + 1 == len(own)
            with contextlib.nullcontext() if last or arguments.processes == 1 else called.no_sync():
                losses[k] = backward(k, arguments.processes / len(ks))  # DDP divides by the processes
        if not own:
            idle(ks[0])
        if run.clips:
            torch.nn.utils.clip_grad_norm_(trained.values(), run.clips)
        for group, scale in zip(optimizer.param_groups, scales):
            group["lr"] = run.lines[ks[0]]["learning_rate"] * scale
        optimizer.step()
        optimizer.zero_grad()
        done = ks[-1] + 1
        if run.drains_behind(ks[-1]) and arguments.processes > 1:
            average_statistics(module, arguments.processes)
        if rank == 0 and arguments.weights_every and done % arguments.weights_every == 0 and done < count:
            save_weights(module, os.path.join(arguments.output, f"weights-{done}.safetensors"), done)
    if arguments.processes > 1:
        torch.distributed.all_reduce(losses)
    if rank == 0:
        with open(os.path.join(arguments.output, "losses.json"), "w", encoding="utf-8") as file:
            json.dump(losses.tolist(), file)
        save_weights(module, os.path.join(arguments.output, "weights.safetensors"), count)
        print(f"{arguments.output}: {count} minibatches, {len(run.rounds(count))} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print(f"next: pipewright-runtime verify --run {arguments.run} --against {arguments.output}")
    if arguments.processes > 1:
        torch.distributed.barrier()  # who leaves first takes nothing away from the others
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model as export_model.py takes it (default: the run's exported program)")
    parser.add_argument("--run", required=True, help="the folder of a finished run")
    parser.add_argument("--batches", required=True, help="what pipewright-runtime batches wrote")
    parser.add_argument("--output", required=True, help="the folder to write losses.json and weights.safetensors into")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an argument of the model")
    parser.add_argument("--classes", type=int, help="of the model, as it was given to export_model.py")
    parser.add_argument("--loss", default="cross_entropy", help="of a model without one of its own: cross_entropy or mse (default: cross_entropy)")
    parser.add_argument("--processes", type=int, default=1, help="of DistributedDataParallel (default: 1, without it)")
    parser.add_argument("--weights-every", type=int, default=0, metavar="N", help="also weights-K.safetensors after every N minibatches")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a process (default: 1)")
    arguments = parser.parse_args()
    if not os.path.exists(arguments.batches):
        fail(f"{arguments.batches}: no such file", f"pipewright-runtime batches --config {arguments.run}/run.json --output {arguments.batches}")
    if Run(arguments.run).by_labels and arguments.processes > 1:  # what cannot be done is said before anything starts
        fail(f"{arguments.run}: loss_average 'labels': DistributedDataParallel averages over minibatches", "Leave out --processes.")
    os.makedirs(arguments.output, exist_ok=True)
    if arguments.processes <= 1:
        return train(0, arguments, None)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (arguments, os.path.join(folder, "meeting")), nprocs=arguments.processes)


if __name__ == "__main__":
    main()
