"""Pipewright's side: `pipewright train module:function`, from the model to weights that PyTorch reads back, one command each."""
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import torch
from apart import Failed, apart
from models import model_and_data
from safetensors.torch import save_file

import pipewright

here = pathlib.Path(__file__).resolve().parent
MINIBATCHES, SECONDS = 8, 3600  # an hour: a busy machine is no failure


def prepare(name, folder):
    """The data of the model's fields, in a file."""
    _, data = model_and_data(name, MINIBATCHES)
    save_file({field: tensor.contiguous() for field, tensor in data.items()}, folder / "data.safetensors")


def read_back(name, folder):
    """The trained weights in a model of PyTorch; they are numbers, and others than at first."""
    model, _ = model_and_data(name, 1)
    first = {field: tensor.clone() for field, tensor in model.named_parameters()}
    pipewright.load(folder / "out/run", model)
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise ValueError("trained weights are not finite")
    if all(torch.equal(parameter, first[field]) for field, parameter in model.named_parameters()):
        raise ValueError("no weight has changed")


def command(name, folder):
    return [sys.executable, "-m", "pipewright", "train", f"{here / 'models.py'}:make", "--option", f"name={name}", "--data",
            f"tensors:file={folder / 'data.safetensors'}", "--gpus", "2", "--yes", "--minibatches", str(MINIBATCHES), "--learning-rate", "0.001",
            "--output", str(folder / "out")]


def error_in(text):
    """The step that was last begun, and the last error."""
    steps = re.findall(r"^\d of \d, (\w+):", text, re.MULTILINE)
    errors = [line.split("error: ", 1)[1] for line in text.splitlines() if "error: " in line and ", ended with exit code" not in line]
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{steps[-1] if steps else 'before the first step'}: {errors[-1] if errors else lines[-1] if lines else 'nothing was printed'}"


def run_command(name, folder, programs):
    """Failed, with what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1] / "python"), "PIPEWRIGHT_PROGRAMS": str(programs)}
    with open(folder / "printed.txt", "w", errors="replace") as printed:
        process = subprocess.Popen(command(name, folder), env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(SECONDS)
        except BaseException as end:  # the driver's own, too
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(end, subprocess.TimeoutExpired):
                raise
            code = None
    if code != 0:
        raise Failed("time-out" if code is None else "fails", error_in((folder / "printed.txt").read_text(errors="replace")))


def outcome(name, folder, programs):
    """What became of one model."""
    begin, line = time.monotonic(), {"outcome": "trains"}
    try:
        apart(SECONDS, "cannot be made", prepare, name, folder, log=folder / "log.txt")
        run_command(name, folder, programs)
        summary, plan = (json.loads((folder / "out/run" / f"{what}.json").read_text()) for what in ("summary", "plan"))
        line.update(strategy=plan["strategy"], stages=len(plan["stages"]), ranks=plan["world_size"], loss=summary["train_loss"])
        if not math.isfinite(summary["train_loss"]):
            raise Failed("fails", "train: the loss is not finite")
        apart(SECONDS, "not read back", read_back, name, folder, log=folder / "log.txt")
    except Failed as failure:
        line.update(outcome=failure.outcome, reason=str(failure))
    return {**line, "seconds": round(time.monotonic() - begin, 1)}
