"""What the programs do, from Python: each function starts one of them and returns the document that it writes.

Further options are those of the program, by their names with underscores: `pipewright-profiler profile --help-all`, `pipewright-optimizer
compare --help-all`, `pipewright-runtime launch --help-all`. Errors are those of the programs, as ProgramError.
"""
from __future__ import annotations

import collections
import json
import os
import typing
from typing import Any

from pipewright.documents import Comparison, Exported, Plan, Profile, Summary
from pipewright.errors import Error
from pipewright.programs import run

if typing.TYPE_CHECKING:
    import torch

Path = typing.Union[str, os.PathLike]


def export(model: torch.nn.Module, example_inputs: dict[str, torch.Tensor], *, output: Path, loss: str | None = None,
           dynamic_batch: bool = False) -> Exported:
    """Writes the model with its weights as a .pt2 file, and checks that the file computes what the model does, gradients included.

    `example_inputs`: tensors by the names of the forward's arguments, or by names of the data's fields in the order of these; dimension 0
    of each is the batch, whose size the file keeps unless `dynamic_batch`. `loss` "cross_entropy" or "mse": it is put on top of what the model
    returns, and the last of the inputs are the labels; None: the model's first output is its loss, a tensor of shape () or (1).
    The model is left as it is. Error, with the place in the model's code, for what torch.export or Pipewright does not take.
    """
    from pipewright import exporting

    with exporting.as_it_was(model):
        if loss is not None:
            if loss not in exporting.LOSSES:
                raise Error(f"got loss '{loss}', expected one of {', '.join(exporting.LOSSES)}")
            model = exporting.with_loss(model, loss, example_inputs)
        program = exporting.export(model, example_inputs, os.fspath(output), dynamic_batch)
        return exporting.exported(model, example_inputs, output, program, type(model).__name__)


def profile(model: Path, *, batch_size: int, output: Path = "profile.json", **options: Any) -> Profile:
    """Measures what one device needs for each operator of `model`, a SPEC or a .pt2 file, with minibatches of `batch_size` samples: seconds
    and bytes."""
    run("profiler", "profile", model=model, batch_size=batch_size, output=output, **options)
    return Profile.read(output)


def compare(profile: Path, *, gpus: int | None = None, output: Path = "plans", **options: Any) -> Comparison:
    """The ways to train the profiled model on `gpus` devices (or those of `topology=FILE`) side by side, the advised one with its reason, and
    a plan of each in the folder `output`. `bandwidths="2GB/s"`: of the links, per direction; `memory="16GiB"`: of a device."""
    return Comparison.of(json.loads(run("optimizer", "compare", profile=profile, gpus=gpus, output=output, json=True, **options)), "compare --json")


def plan(profile: Path, *, gpus: int | None = None, output: Path, **options: Any) -> Plan:
    """The best plan for `gpus` devices (or those of `topology=FILE`), written as `output`, a name that ends in .json; `strategy="straight"`
    and the like ask for one of a kind."""
    run("optimizer", "plan", profile=profile, gpus=gpus, output=output, **options)
    return Plan.read(output)


def train(model: Path, *, plan: Path | None, data: str, output: Path = "runs/latest", **options: Any) -> Summary:
    """Trains `model` under a plan, one process for each of its ranks on this host, on `data`, a SPEC (docs/data.md). Weights, metrics and
    summary are in the run folder `output` then."""
    run("runtime", "launch", model=model, plan=plan, data=data, output=output, **options)
    return Summary.read(os.path.join(output, "summary.json"))


def load(run: Path, model: torch.nn.Module) -> torch.nn.Module:
    """Puts the weights that a run has trained into a model of the same kind, each parameter and buffer by its name, strictly.

    `run`: a run folder that has ended, or a .safetensors file. Returns the model. Error where there are no weights or they do not fit.
    """
    import safetensors.torch

    file = os.fspath(run)
    if os.path.isdir(file):
        file = os.path.join(file, "model.safetensors")
    if not os.path.isfile(file):
        raise Error(f"there are no weights {file}", "A run that has ended leaves them; of one that was stopped: pipewright-runtime checkpoint export RUN.")
    weights = collections.OrderedDict(safetensors.torch.load_file(file))
    # The versions of its modules' forms, which a file of tensors has not: some modules take weights without one for old ones.
    weights._metadata = getattr(model.state_dict(), "_metadata", {})
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise Error(f"{file} does not fit the model: {error}", "Make the model as it was exported: the same function and options.") from None
    return model
