#!/usr/bin/env python3
"""What `pipewright export` says of the mistakes of users: one line, and a likely way out; and what its files hold of a model.

    python tests/models/pt2/export_errors.py

Without torch it prints SKIPPED: and its reason. It writes into a temporary folder only.
"""
import contextlib
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import textwrap
import warnings

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "python"

# Name, body of a forward of (features, labels) with self.linear, what the error says, what its remedy says.
FORWARDS = (
    ("branch", "x = self.linear(features)\nif x.sum() > 0:\n    x = x * 2\nreturn F.cross_entropy(x, labels)",
     ["torch.export does not take the model", "data-dependent", "my_models.py:", "if x.sum() > 0:"], "torch.where for an if"),
    ("item", "return F.cross_entropy(self.linear(features) * features.max().item(), labels)",
     ["'aten.mul.Tensor'", "a number that is read from a tensor"], "without .item()"),
    ("picked", "x = self.linear(features)\nreturn x[x > 0].mean()", ["'aten.index.Tensor'", "depends on values"], "multiply by a mask"),
    ("numpy", "return F.cross_entropy(self.linear(features) * torch.from_numpy(features.numpy()).sum(), labels)",
     ["torch.export does not take the model", "my_models.py:"], "torch instead of numpy"),
    ("scores", "return {'scores': self.linear(features)}", ["returns a dict with scores", "expected a tensor"], "(loss, scores)"),
    ("text", "return 'hello'", ["returns a str"], "(loss, scores)"),
    ("detached", "return F.cross_entropy(self.linear(features).detach(), labels)", ["cannot be trained, in PyTorch neither"], "detach()"),
    ("cond", "return torch.cond(labels[0] > 1, lambda x: x.sum(), lambda x: x.mean(), (self.linear(features),))",
     ["'cond'", "control flow"], "torch.where for torch.cond"),
    ("own", "return F.cross_entropy(torch.ops.mine.double(self.linear(features)), labels)",
     ["'mine.double.default'", "none of PyTorch's own"], "PyTorch's operators"),
    ("estimator", "return F.cross_entropy(Straight.apply(self.linear(features)), labels)",
     ["gradient of 'linear.", "another one in the exported program"], "no backward of an autograd.Function"),
    ("shape", "return F.cross_entropy(self.linear(features[:, :3]), labels)",
     ["does not run on its example inputs (features float32 (4, 6), labels int64 (4,))", "my_models.py:"], "what the model reads"),
    ("dict", "x = self.linear(features)\nreturn {'logits': x, 'loss': F.cross_entropy(x, labels)}", [], ""),
    ("noise", "x = self.linear(features)\nreturn F.cross_entropy(x * torch.rand_like(x).uniform_(), labels)", [], ""),
    ("unused", "with torch.no_grad():\n    unused = features.sum() * 2\nreturn F.cross_entropy(self.linear(features), labels)", [], ""),
    ("good", "return F.cross_entropy(self.linear(features), labels)", [], ""),
)

HEAD = '''
import torch
from torch import nn
import torch.nn.functional as F

torch.library.define("mine::double", "(Tensor x) -> Tensor")
torch.library.impl("mine::double", "CompositeExplicitAutograd", lambda x: 2 * x)
torch.library.register_fake("mine::double", lambda x: torch.empty_like(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.sign()

    @staticmethod
    def backward(context, gradient):
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)


def inputs():
    return {"features": torch.randn(4, 6), "labels": torch.randint(0, 5, (4,))}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, labels):
        return F.cross_entropy(self.head(self.embedding(tokens)), labels)


def tied():
    return Tied(), {"tokens": torch.randint(0, 7, (4,)), "labels": torch.randint(0, 7, (4,))}


def as_tuple():
    return Model(), (torch.randn(4, 6),)


def uneven():
    return Model(), {"features": torch.randn(4, 6), "labels": torch.randint(0, 5, (3,))}


def swapped():
    return Good(), {name: one for name, one in reversed(inputs().items())}


def half_named():
    return Good(), {"labels": torch.randn(4, 6), "classes": torch.randint(0, 5, (4,))}


class Optional(Model):
    def forward(self, features, weights=None, labels=None):
        scores = self.linear(features if weights is None else features * weights)
        return None, 2, [F.cross_entropy(scores, labels).reshape(1), scores]


def optional():
    return Optional(), inputs()


class Centred(Model):
    def forward(self, features, labels):
        centred = features - features.mean(0) if features.shape[0] > 1 else features
        return F.cross_entropy(self.linear(centred), labels)


def centred():
    return Centred(), inputs()


class Lazy(Model):
    def __init__(self):
        super().__init__()
        self.first = nn.LazyLinear(6)

    def forward(self, features, labels):
        return F.cross_entropy(self.linear(torch.tanh(self.first(features))), labels)


def lazy():
    return Lazy(), inputs()


class Counting(Model):
    def __init__(self, frozen=True):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.norm.train(not frozen)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.calls = []

    def forward(self, features, labels):
        self.calls.append(len(self.calls))
        self.seen += 1
        self.unsaved.mul_(2).add_(1)
        return F.cross_entropy(self.linear(self.norm(features)) * self.unsaved.sum(), labels)


def frozen():
    return Counting(), inputs()


def evaluating():
    return Counting().eval(), inputs()


def nothing():
    pass


def failing(width=3):
    raise KeyError("height")
'''

# The words after the command's name, what the error says, what its remedy says.
COMMANDS = (
    (["my_models:tied"], [], ""),
    (["resnet18"], ["'resnet18' is no model"], "torchvision:NAME"),
    (["my_modles:good"], ["there is no module 'my_modles'"], "PYTHONPATH"),
    (["my_models.py:good"], [], ""),
    (["./my_models.py:good"], [], ""),
    (["my_modles.py:good"], ["there is no module 'my_modles'"], "where my_modles.py is"),
    (["nowhere/other.py:good"], ["there is no module 'other' in ", "nowhere"], "where other.py is"),
    (["my_models.py:goood"], ["has no function 'goood'"], "'good'"),
    (["my_models:goood"], ["has no function 'goood'"], "'good'"),
    (["my_models:as_tuple"], ["example inputs of 'my_models:as_tuple' are a tuple"], '{"images": ..., "labels": ...}'),
    (["my_models:uneven"], ["differ in dimension 0, the samples: features 4, labels 3"], ""),
    (["my_models:half_named"], ["example input 0, 'labels', is another argument of the forward, which takes features, labels"], "or none"),
    (["my_models:lazy"], [], ""),
    (["my_models:nothing"], ["returns a NoneType; expected a torch.nn.Module"], ""),
    (["my_models:failing"], ["'my_models:failing' cannot be made: KeyError", "my_models.py:"], ""),
    (["my_models:failing", "--option", "depth=2"], ["unexpected keyword argument 'depth'"], "--option"),
    (["my_models:good", "--classes", "3", "--option", "num_classes=4"], ["say different things"], "one of them"),
    (["my_models:good", "--option", "depth"], ["--option depth: expected NAME=VALUE"], ""),
    (["my_models:good", "--output", "missing/out.pt2"], ["missing/out.pt2 cannot be written", "does not exist"], "--output"),
    (["no_such_library_of_models:x"], ["there is no module 'no_such_library_of_models'"], "PYTHONPATH"),
)
LIBRARIES = (
    ("torchvision", ["torchvision:resnet81"], ["torchvision has no model 'resnet81'"], "'resnet18'"),
    ("torchvision", ["torchvision:resnet18", "--option", "classes=10"], ["unexpected keyword argument 'classes'"], "--option"),
    ("timm", ["timm:vit_tiny"], ["timm has no model 'vit_tiny'"], ""),
    ("transformers", ["transformers:t5", "--classes", "3"], ["'t5' classifies by tokens that end a text"], "module:function"),
    ("transformers", ["transformers:mamba", "--classes", "3"], ["'mamba' has no classifier of texts"], "--classes"),
    ("transformers", ["transformers:gtp2"], ["transformers has no model type 'gtp2'"], "'gpt2'"),
)


def export(words):
    """Its exit code and what it prints as an error; in this process, as importing torch takes longest."""
    error = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
            command_line.main(["export", "--output", "out.pt2", *words])
    except SystemExit as end:
        said = error.getvalue()
        return end.code, said[said.find("pipewright: error: "):]
    return 0, ""


def norms_train(program):
    """Whether each batch norm of the program takes the minibatch's statistics."""
    return [node.args[5] for node in program.graph.nodes if str(node.target) == "aten.batch_norm.default"]


def equal_losses(torch, program, module, inputs):
    called = program.module()
    names = program.example_inputs[1]
    given = [one for name, one in inputs.items() if name not in names]  # in the order of the forward
    got = [one for one in torch.utils._pytree.tree_leaves(called(*given, **{name: inputs[name] for name in names}))
           if isinstance(one, torch.Tensor)][0]
    with torch.no_grad():
        module.linear.load_state_dict({name.removeprefix("linear."): one for name, one in program.state_dict.items()})
        wanted = [one for one in torch.utils._pytree.tree_leaves(module(**inputs)) if isinstance(one, torch.Tensor)][0]
    return torch.equal(got, wanted)


def saved_classifier(torch):
    """A folder as save_pretrained() writes it."""
    import transformers

    config = transformers.DistilBertConfig(vocab_size=50, dim=8, hidden_dim=16, n_layers=1, n_heads=2, num_labels=3, max_position_embeddings=16)
    transformers.DistilBertForSequenceClassification(config).save_pretrained("saved")
    return "transformers:saved"


def check_programs(torch):
    """What the files hold of models: modes, buffers, arguments, heads."""
    import my_models

    def exported(*words):
        said, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            command_line.main(["export", "--output", "out.pt2", *words])
        return torch.export.load("out.pt2"), said.getvalue(), told.getvalue()

    results = {}
    program, said, told = exported("my_models:frozen")
    results["a frozen norm stays frozen"] = norms_train(program) == [False] and "in evaluation mode: norm\n" in said and not told
    buffers = [program.state_dict["seen"], program.constants["unsaved"]]
    results["buffers begin where they were"] = all(one.abs().sum() == 0 for one in buffers)
    model, inputs = my_models.frozen()
    before = torch.get_rng_state()
    with exporting.unchanged(model):
        model(**inputs)
        torch.rand(1)
    results["running a model leaves no trace"] = (model.calls == [] and model.unsaved.abs().sum() == 0
                                                  and torch.equal(torch.get_rng_state(), before))
    program, said, told = exported("my_models:evaluating")
    results["a model in evaluation mode is trained"] = norms_train(program) == [True] and "came in evaluation mode" in told
    inputs = my_models.inputs()
    results["inputs in another order"] = equal_losses(torch, exported("my_models:swapped")[0], my_models.Good(), inputs)
    results["an argument left out"] = equal_losses(torch, exported("my_models:optional")[0], my_models.Optional(), inputs)
    results["an open batch by names"] = "inputs: features" in exported("my_models:optional", "--dynamic-batch")[1]
    results["another branch for one sample"] = "of a minibatch of one sample" in exported("my_models:centred", "--dynamic-batch")[2]
    if importlib.util.find_spec("transformers") is not None:
        small = [word for one in ("dim=8", "hidden_dim=16", "n_layers=1", "n_heads=2", "vocab_size=50") for word in ("--option", one)]
        scores = lambda program: [tuple(one.meta["val"].shape) for one in program.graph.output_node().args[0]][1]  # noqa: E731
        program, said, _ = exported("transformers:distilbert", *small, "--tokens", "8", "--classes", "4")
        results["--classes makes a classifier of texts"] = scores(program) == (8, 4) and "labels int64 (8,)" in said
        folder = saved_classifier(torch)
        program, said, told = exported(folder, "--tokens", "8")
        results["a saved model with its head"] = scores(program) == (8, 3) and "start anew" not in told
        program, said, told = exported(folder, "--tokens", "8", "--classes", "5")
        results["a saved model with another head"] = scores(program) == (8, 5) and "start anew: classifier.bias, classifier.weight" in told
    for name, good in results.items():
        print(f"{name:40} {'ok' if good else 'WRONG'}", flush=True)
    return all(results.values())


def check(name, words, says, remedy):
    code, error = export(words)
    lines = error.strip().splitlines()
    good = code == 0 if not says else (
        code == 1 and 1 <= len(lines) <= 2 and lines[0].startswith("pipewright: error: ")
        and all(part in lines[0] for part in says) and (not remedy or remedy in lines[-1]))
    print(f"{name:40} {'ok' if good else f'WRONG: {code} {error}'}", flush=True)
    return good


def main():
    global command_line, exporting
    if importlib.util.find_spec("torch") is None:
        print("SKIPPED: this Python has no torch; scripts/test --with-pytorch makes one that has")
        return
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(PACKAGE))
    from pipewright import command_line, exporting

    good = True
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = HEAD
        for name, body, _, _ in FORWARDS:
            text += f"\n\nclass {name.title()}(Model):\n    def forward(self, features, labels):\n{textwrap.indent(body, ' ' * 8)}\n"
            text += f"\n\ndef {name}():\n    return {name.title()}(), inputs()\n"
        pathlib.Path("my_models.py").write_text(text)
        for name, _, says, remedy in FORWARDS:
            good &= check(name, [f"my_models:{name}"], says, remedy)
        for words, says, remedy in COMMANDS:
            good &= check(" ".join(words), words, says, remedy)
        for library, words, says, remedy in LIBRARIES:
            if importlib.util.find_spec(library) is None:
                print(f"{' '.join(words):40} not checked: {library} is not installed")
            else:
                good &= check(" ".join(words), words, says, remedy)
        sys.path.insert(0, folder)
        good &= check_programs(exporting.torch)
        os.chdir("/")
    sys.exit(not good)


if __name__ == "__main__":
    main()
