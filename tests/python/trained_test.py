#!/usr/bin/env python3
"""`pipewright train` of models of libraries and of one's own; what PyTorch computes with the trained weights is what Pipewright computes.

    trained_test.py BIN_DIR

Without torch, or what a model comes from, it prints SKIPPED: and its reason. It writes into temporary folders only.
"""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "python"))
sys.dont_write_bytecode = True
os.environ.update(PIPEWRIGHT_PROGRAMS=os.path.abspath(sys.argv.pop(1)), PYTHONPATH=str(SOURCE / "python"), PYTHONDONTWRITEBYTECODE="1")

if missing := [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]:
    print(f"SKIPPED: this Python has no {missing[0]}; scripts/test --with-pytorch makes one that has")
    sys.exit()
import safetensors.torch  # noqa: E402
import torch  # noqa: E402

import pipewright  # noqa: E402

OWN = '''
import torch
from torch import nn

class Sum(nn.Module):
    _version = 2

    def _load_from_state_dict(self, weights, prefix, metadata, *others):
        if metadata.get("version") != 2:  # as models that have changed do: MNASNet of torchvision
            raise ValueError(f"version {metadata.get('version')}")
        super()._load_from_state_dict(weights, prefix, metadata, *others)

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(4)), nn.Linear(8, 3))

    def forward(self, points, labels):
        scores = self.layers(points)
        return nn.functional.cross_entropy(scores, labels), scores

def make():
    torch.manual_seed(1)
    return Sum(), {"points": torch.randn(16, 8), "labels": torch.randint(3, (16,))}
'''


def needs(library):
    return unittest.skipIf(importlib.util.find_spec(library) is None, f"{library} is not installed")


class Trained(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder.name)
        torch.manual_seed(0)

    def train(self, *words, code=0):
        done = subprocess.run([sys.executable, "-m", "pipewright", "train", *words, "--gpus", "2", "--yes", "--output", "out", "--minibatches", "6"],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def compare(self, fields, scores_of, batch):
        """The scores and the loss that Pipewright computes of the trained weights are PyTorch's."""
        safetensors.torch.save_file(fields, "fields.safetensors")
        question = ["--model", "out/model.pt2", "--initial-weights", "out/run/model.safetensors", "--evaluation-data", "tensors:file=fields.safetensors",
                    "--batch-size", str(batch)]
        program = os.path.join(os.environ["PIPEWRIGHT_PROGRAMS"], "pipewright-runtime")
        subprocess.run([program, "predict", *question, "--predictions", "scores.safetensors"], check=True, capture_output=True)
        evaluated = json.loads(subprocess.run([program, "evaluate", *question, "--json"], check=True, capture_output=True, text=True).stdout)
        got = safetensors.torch.load_file("scores.safetensors")["scores"]
        with torch.no_grad():
            wanted = scores_of(fields)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        loss = torch.nn.functional.cross_entropy(wanted.flatten(0, -2), fields["labels"].flatten())
        self.assertAlmostEqual(evaluated["loss"], loss.item(), places=4)

    @needs("transformers")
    def test_gpt2_on_bytes_for_from_pretrained_and_on_with_its_weights(self):
        import transformers

        pathlib.Path("text.txt").write_text((SOURCE / "README.md").read_text() * 2)
        os.mkdir("gpt2")  # it has the name of the type, and no model
        said = self.train("transformers:gpt2", "--option", "n_layer=2", "--option", "n_embd=32", "--option", "n_head=2", "--tokens", "16", "--text", "text.txt",
                          "--strategy", "2bw", "--learning-rate", "0.1")
        self.assertIn('transformers.GPT2LMHeadModel.from_pretrained("out/run")', said)
        self.assertIn("its weights are first values", said)
        model = transformers.GPT2LMHeadModel.from_pretrained("out/run").eval()
        self.assertEqual(model.config.vocab_size, 256)
        tokens = torch.randint(256, (16, 17))
        self.compare({"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}, lambda fields: model(fields["tokens"]).logits, 8)
        again = transformers.AutoModelForCausalLM.from_pretrained("out/run").state_dict()
        os.rename("out", "first")
        said = self.train("transformers:first/run", "--tokens", "16", "--text", "text.txt")
        self.assertIn("no tokenizer of 'first/run' is here, so a token is a byte", said)
        initial = torch.export.load("out/model.pt2").state_dict
        for name, tensor in initial.items():
            self.assertTrue(torch.equal(tensor, again[name]), name)

    @needs("transformers")
    def test_a_model_with_a_tokenizer_reads_its_tokens(self):
        import tokenizers
        import transformers

        text = (SOURCE / "README.md").read_text()
        pathlib.Path("text.txt").write_text(text)
        cutter = tokenizers.ByteLevelBPETokenizer()
        cutter.train_from_iterator([text], vocab_size=600)
        transformers.PreTrainedTokenizerFast(tokenizer_object=cutter._tokenizer).save_pretrained("mine")
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=600, n_positions=32)).save_pretrained("mine")
        said = self.train("transformers:mine", "--tokens", "16", "--text", "text.txt")
        self.assertIn("text:file=out/text.tokens,tokens=16,format=uint16,vocabulary=600", said)
        numbers = torch.frombuffer(bytearray(pathlib.Path("out/text.tokens").read_bytes()), dtype=torch.uint16).tolist()
        self.assertEqual(transformers.AutoTokenizer.from_pretrained("mine").decode(numbers, clean_up_tokenization_spaces=False), text)

    @needs("transformers")
    def test_a_model_that_fills_gaps_is_not_trained_on_the_next_token(self):
        pathlib.Path("text.txt").write_text("some words " * 200)
        said = self.train("transformers:bert", "--option", "hidden_size=16", "--option", "num_hidden_layers=1", "--option", "num_attention_heads=2", "--option",
                          "intermediate_size=16", "--text", "text.txt", code=1)
        self.assertIn("BertForMaskedLM reads the tokens that it is to predict", said)
        self.assertIn("--data masked-text:file=text.txt,tokens=64 --option vocab_size=257", said)

    @needs("torchvision")
    def test_resnet18(self):
        import torchvision

        self.train("torchvision:resnet18", "--classes", "5", "--image", "32", "--batch-size", "4", "--strategy", "straight", "--data",
                   "synthetic-images:image=32,channels=3,classes=5")
        model = pipewright.load("out/run", torchvision.models.resnet18(num_classes=5)).eval()
        self.compare({"images": torch.randn(8, 3, 32, 32), "labels": torch.randint(5, (8,))}, lambda fields: model(fields["images"]), 4)
        with self.assertRaisesRegex(pipewright.Error, "out/run/model.safetensors does not fit the model"):
            pipewright.load("out/run", torchvision.models.resnet18())
        with self.assertRaisesRegex(pipewright.Error, "there are no weights nowhere"):
            pipewright.load("nowhere", model)

    def test_a_function_of_ones_own(self):
        pathlib.Path("own.py").write_text(OWN)
        safetensors.torch.save_file({"points": torch.randn(160, 8), "labels": torch.randint(3, (160,))}, "data.safetensors")
        said = self.train("own:make", "--data", "tensors:file=data.safetensors", "--strategy", "straight")
        self.assertIn("--batch-size 16", said)
        sys.path.insert(0, os.getcwd())
        import own

        model = pipewright.load("out/run", own.make()[0]).eval()
        fields = {"points": torch.randn(32, 8), "labels": torch.randint(3, (32,))}
        self.compare(fields, lambda fields: model.layers(fields["points"]), 16)

    def test_export_leaves_the_model_as_it_is(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)).eval()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        inputs = {"points": torch.randn(8, 4), "labels": torch.randint(3, (8,))}
        with contextlib.redirect_stderr(io.StringIO()):
            made = pipewright.export(model, inputs, loss="cross_entropy", output="a.pt2")
        self.assertEqual((made.batch_size, made.inputs["points"], made.parameters), (8, "float32 (8, 4)", 15))
        self.assertFalse(any(module.training for module in model.modules()))
        self.assertNotIn("forward", model.__dict__)
        self.assertEqual(model(inputs["points"]).shape, (8, 3))
        self.assertTrue(all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()))
        with self.assertRaisesRegex(pipewright.Error, "got loss 'hinge', expected one of cross_entropy, mse"):
            pipewright.export(model, inputs, loss="hinge", output="a.pt2")

    def test_a_misspelt_model_is_told_with_the_nearest(self):
        said = self.train("own:make", "--data", "synthetic-images", code=1)
        self.assertIn("there is no module 'own'\n  Run this where own.py is", said)
        self.assertIn("step 1 of 6, export, ended with exit code 1", said)


unittest.main(verbosity=2)
