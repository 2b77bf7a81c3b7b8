"""The models of tests/models/pt2/compare_models.py, their data and first weights, as both sides take them."""
import pathlib
import sys

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "tests/models/pt2"), str(root / "python")]
import compare_models  # noqa: E402
import torch  # noqa: E402
from compare_models import MODELS, RATE, STEPS  # noqa: E402
from pipewright import exporting  # noqa: E402

BATCH, MICROBATCHES = 4, 2  # samples of a microbatch, as compare_models has them; microbatches of an update


def model_and_data(name, minibatches):
    """The model in training mode, and fields of so many minibatches: the same in every process."""
    torch.manual_seed(0)
    model, fields = MODELS[name]()
    return model.train(), {field: draw(BATCH * minibatches) for field, draw in fields.items()}


def with_own_loss(model, data):
    """The model returns its loss; those without labels do so by themselves."""
    return exporting.with_loss(model, "cross_entropy", data) if "labels" in data else model


def make(name):
    """For `pipewright train models.py:make --option name=NAME`."""
    model, inputs = model_and_data(name, 1)
    return with_own_loss(model, inputs), inputs


def expected_losses(model, data):
    """Those of plain PyTorch in one process. The model is left as it was."""
    with exporting.as_it_was(model), exporting.unchanged(model):
        losses = compare_models.train_in_python(with_own_loss(model, data), data, BATCH, MICROBATCHES)
    model.zero_grad()
    return losses
