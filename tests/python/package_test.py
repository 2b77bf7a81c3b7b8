#!/usr/bin/env python3
"""The Python package without torch: its documents, the commands that it makes of options, its errors, and `pipewright train` of a .pt2 file.

    package_test.py BIN_DIR
"""
import contextlib
import dataclasses
import doctest
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
import pipewright  # noqa: E402
from pipewright import command_line, documents, programs, train_command  # noqa: E402

PROGRAMS = os.path.abspath(sys.argv.pop(1))
MLP = "mlp:layers=4,width=16,image=8"
IMAGES = "synthetic-images:image=8,samples=64"


def arguments_of(*words):
    return command_line.parsers().parse_args(["train", *words])


class Words(unittest.TestCase):
    def test_examples(self):
        self.assertEqual(doctest.testmod(programs).failed, 0)

    def test_a_spec_of_any_path_is_one_path(self):
        self.assertEqual(programs.spec("a,b=1:c\\d.pt2"), "a\\,b=1\\:c\\\\d.pt2")

    def test_steps(self):
        given = arguments_of("transformers:gpt2", "--text", "a.txt", "--gpus", "2", "--output", "out", "--option", "n_layer=2", "--optimizer",
                             "adamw", "--tokens", "32")
        export = train_command.export_step(given)
        self.assertEqual(export.command[export.command.index("export"):],
                         "export transformers:gpt2 --option n_layer=2 --option vocab_size=256 --option bos_token_id=none --option eos_token_id=none --tokens 32 "
                         "--output out/model.pt2 --json".split())
        given.batch_size = 8
        data = train_command.data_of(given)
        self.assertEqual(train_command.profile_step(given, data).command[1:],
                         "profile --model out/model.pt2 --batch-size 8 --data text:file=a.txt,tokens=32 --optimizer adamw --output out/profile.json".split())
        self.assertEqual(train_command.compare_step(given, {"optimizer": "adamw"}).command[1:],
                         "compare --gpus 2 --profile out/profile.json --optimizer adamw --output out/plans --report out/compare.md --report out/compare.html --json".split())
        self.assertEqual(train_command.launch_step(given, data, "p.json", ["--epochs", "3"]).command[1:],
                         "launch --model out/model.pt2 --plan p.json --data text:file=a.txt,tokens=32 --batch-size 8 --optimizer adamw --seed 0 --output out/run "
                         "--epochs 3".split())

    def test_the_planner_knows_what_the_run_keeps_for_each_weight(self):
        def update(optimizer, momentum, correction="none"):
            return programs.words_of(train_command.update_of([{"setting": name, "value": value, "from": "default"} for name, value in (
                ("optimizer", optimizer), ("momentum", momentum), ("delay-correction", correction))]))

        self.assertEqual(update("sgd", 0), ["--optimizer-slots", "0"])
        self.assertEqual(update("sgd", 0.9), ["--optimizer", "sgd"])
        self.assertEqual(update("adamw", 0), ["--optimizer", "adamw"])
        self.assertEqual(update("sgd", 0, "dc"), ["--optimizer-slots", "0", "--delay-correction", "dc"])

    def test_a_text_is_bytes_unless_the_model_has_a_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            for model, more, has in (("transformers:gpt2", [], False), ("transformers:gpt2", ["--pretrained"], True), (f"transformers:{folder}", [], True),
                                     ("transformers:a/b", [], True), ("net:make", [], False)):
                self.assertEqual(train_command.has_tokenizer(arguments_of(model, "--text", "a", "--gpus", "1", *more)), has, (model, more))
        given = arguments_of("transformers:gpt2", "--text", "a", "--gpus", "1", "--option", "vocab_size=300", "--output", "out")
        self.assertNotIn("vocab_size=256", train_command.export_step(given).command)
        tokens = train_command.Tokens("t", "uint16", 5000, 9)
        self.assertEqual(train_command.data_of(given, tokens), "text:file=t,tokens=64,format=uint16,vocabulary=5000")


class Documents(unittest.TestCase):
    def test_examples_and_what_is_wrong_with_them(self):
        for kind in (pipewright.Profile, pipewright.Plan, pipewright.Summary):
            name = kind.SCHEMA.partition("/")[0].removeprefix("pipewright.")
            text = (SOURCE / "docs" / "examples" / f"{name}.json").read_text()
            document = kind.of(json.loads(text))
            self.assertEqual(dataclasses.replace(document), document)
            for change, said in (({"colour": 1}, "unknown key 'colour'"), ({"schema": "pipewright.x/1"}, "expected 'pipewright."),
                                 ({"world_size" if name != "profile" else "threads": "3"}, ': got "3", expected int')):
                with self.assertRaises(pipewright.Error) as raised:
                    kind.of({**json.loads(text), **change}, "file.json")
                self.assertIn("file.json", str(raised.exception))
                self.assertIn(said, str(raised.exception))
            for key in (field.name for field in dataclasses.fields(kind)
                        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING):
                less = json.loads(text)
                del less[key]
                with self.assertRaisesRegex(pipewright.Error, f"key '{key}' is missing"):
                    kind.of(less)
        with self.assertRaisesRegex(pipewright.Error, r"stages\[1\]\.ranks\[0\]: got 1.5, expected int"):
            plan = json.loads((SOURCE / "docs" / "examples" / "plan.json").read_text())
            plan["stages"][1]["ranks"] = [1.5]
            pipewright.Plan.of(plan)
        with self.assertRaisesRegex(pipewright.Error, "nowhere.json cannot be read"):
            pipewright.Plan.read("nowhere.json")

    def test_every_field_of_a_document_is_named_in_formats(self):
        formats = (SOURCE / "docs" / "formats.md").read_text()
        for kind in (documents.Profile, documents.ProfiledNode, documents.ProfiledModel, documents.Plan, documents.Stage, documents.Prediction,
                     documents.PredictedStage, documents.Summary, documents.RankSummary, documents.Evaluation, documents.Memory):
            for field in dataclasses.fields(kind):
                self.assertRegex(formats, rf"[`.]{field.name}[`\[.]", kind)


class WithPrograms(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder.name)
        os.environ["PIPEWRIGHT_PROGRAMS"] = PROGRAMS

    def command(self, *words, code=0):
        """Standard output and error of `pipewright` in a process of its own."""
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-m", "pipewright", *words], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_each_step_returns_its_document(self):
        with contextlib.redirect_stderr(io.StringIO()):
            profile = pipewright.profile(MLP, batch_size=8, repeats=6, output="profile.json")
            comparison = pipewright.compare("profile.json", gpus=2, output="plans", bandwidths="2GB/s")
            plan = pipewright.plan("profile.json", gpus=2, strategy="straight", output="straight.json")
            summary = pipewright.train(MLP, plan="straight.json", data=IMAGES, evaluation_data=IMAGES, batch_size=8, minibatches=8, output="run")
        self.assertEqual((profile.model, profile.minibatch_samples), (MLP, 8))
        self.assertEqual({one.name for one in profile.nodes}, {name for stage in plan.stages for name in stage.nodes})
        self.assertEqual(pipewright.Plan.read(comparison.contender("straight").plan).world_size, 2)
        self.assertIn("Take ", comparison.advice)
        self.assertEqual((plan.strategy, summary.world_size, summary.minibatches, summary.evaluation.samples), ("straight", 2, 8, 64))
        with self.assertRaisesRegex(pipewright.Error, "no plan of strategy 'hybrid': .*impossible"):
            comparison.contender("hybrid")

    def test_what_a_program_refuses_is_an_exception_with_its_words(self):
        said = io.StringIO()
        with self.assertRaises(pipewright.ProgramError) as raised, contextlib.redirect_stderr(said):
            pipewright.compare("nowhere.json", gpus=2)
        self.assertEqual(raised.exception.returncode, 2)
        self.assertIn("nowhere.json", str(raised.exception))
        self.assertIn("nowhere.json", said.getvalue())

    def test_no_programs(self):
        os.environ["PIPEWRIGHT_PROGRAMS"] = "nowhere"
        with self.assertRaisesRegex(pipewright.Error, "no program pipewright-runtime in nowhere"):
            pipewright.profile(MLP, batch_size=8)

    def test_the_torch_of_this_python_is_found_without_importing_it(self):
        os.makedirs("site/torch")
        pathlib.Path("site/torch/__init__.py").write_text("raise SystemExit('imported')")
        found = subprocess.run([sys.executable, "-c", "from pipewright.programs import environment; print(environment()['TORCH_ROOT'])"], text=True,
                               env={**{name: one for name, one in os.environ.items() if name != "TORCH_ROOT"}, "PYTHONPATH": f"{SOURCE}/python:{os.getcwd()}/site"},
                               stdout=subprocess.PIPE, check=True)
        self.assertEqual(found.stdout.strip(), os.path.abspath("site/torch"))

    def test_train(self):
        file, data = SOURCE / "tests/models/pt2/net.pt2", "synthetic-images:image=28,samples=320"
        words = [str(file), "--data", data, "--batch-size", "16", "--gpus", "2", "--strategy", "straight"]
        said, _ = self.command("train", *words, "--output", "out", "--yes", "--learning-rate", "0.05")
        for document in ("profile.json", "compare.json", "plans/gpus=2.straight.json", "run/summary.json"):
            self.assertIn(f"\n  out/{document}", said)
            self.assertTrue(pathlib.Path("out", document).is_file(), document)
        comparison = pipewright.Comparison.read("out/compare.json")
        self.assertIn(comparison.advice, said)
        self.assertIn('pipewright.load("out/run", model)', said)
        summary = pipewright.Summary.read("out/run/summary.json")
        self.assertEqual((summary.status, summary.minibatches, summary.world_size), ("done", 20, 2))
        commands = [line.partition(": ")[2] for line in said.splitlines() if " of 5, " in line]
        self.assertEqual(len(commands), 5)
        for step in (1, 2):  # no momentum
            self.assertIn("--optimizer-slots 0", commands[step])
        for page in ("compare", "plan", "run"):
            self.assertIn(f"out/{page}.html", said)
            self.assertIn("</html>", pathlib.Path("out", page + ".html").read_text())
        again = subprocess.run(["sh", "-c", commands[1]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        self.assertEqual(json.loads(again), json.loads(pathlib.Path("out/compare.json").read_text()))

        said, _ = self.command("train", *words, "--output", "planned", "--plan-only")
        self.assertIn("train under it: ", said)
        self.assertFalse(pathlib.Path("planned/run").exists())
        self.assertEqual(train_command.STRATEGIES, tuple(one.strategy for one in comparison.strategies))

    def test_mistakes_are_told_before_anything_starts(self):
        file = str(SOURCE / "tests/models/pt2/net.pt2")
        file16 = [file, "--batch-size", "16"]
        many = str(len(os.sched_getaffinity(0)) + 1)
        for words, code, *says in (
                (["transformers:gpt2", "--text", "nowhere.txt", "--gpus", "1", "--yes"], 2, "--text nowhere.txt: there is no such file", "Name a text"),
                (["resnet18", "--data", IMAGES, "--gpus", "1", "--yes"], 2, "'resnet18' is no model", "torchvision:NAME"),
                (["net.pt2", "--data", IMAGES, "--gpus", "1", "--yes"], 2, "there is no file net.pt2", "pipewright export"),
                ([file, "--data", IMAGES, "--gpus", "1", "--yes"], 2, "--batch-size is missing", file),
                ([*file16, "--data", IMAGES, "--gpus", many, "--yes"], 2, f"--gpus {many}: without --device cuda a rank is a core", "--plan-only"),
                ([*file16, "--data", IMAGES, "--gpus", "1"], 2, "nobody can be asked", "--yes"),
                ([*file16, "--data", IMAGES, "--gpus", "1", "--yes", "--learning-rat", "1"], 2, "did you mean '--learning-rate'?"),
                ([*file16, "--data", IMAGES, "--gpus", "1", "--strategy", "strait", "--yes"], 2, "--strategy 'strait' is not known", "Did you mean 'straight'?"),
                ([*file16, "--data", IMAGES, "--gpus", "1", "--strategy", "dancing", "--yes"], 2, "Known: one device, dp, "),
                ([*file16, "--data", IMAGES, "--gpus", "0", "--yes"], 2, "--gpus: 0 is not in 1.."),
                ([*file16, "--data", IMAGES, "--gpus", "1", "--bandwidths", "fast", "--yes"], 2, "--bandwidths", "fast"),
                ([*file16, "--data", IMAGES, "--topology", "nowhere.json", "--yes"], 2, "nowhere.json"),
                ([file, "--gpus", "1", "--yes"], 2, "--text --data is required"),
                ([file, "--data", IMAGES, "--yes"], 2, "--gpus --topology is required")):
            _, error = self.command("train", *words, code=code)
            for said in says:
                self.assertIn(said, error)
        self.assertEqual(os.listdir(), [])

    def test_a_step_that_fails_is_named_with_its_program_s_exit_code(self):
        said, error = self.command("train", str(SOURCE / "tests/models/pt2/net.pt2"), "--data", "synthetic-images:image=9", "--batch-size", "16", "--gpus", "1", "--yes",
                                   "--output", "out", code=2)
        self.assertIn("1 of 5, profile: ", said)
        self.assertIn("step 1 of 5, profile, ended with exit code 2", error)


unittest.main(verbosity=2)
