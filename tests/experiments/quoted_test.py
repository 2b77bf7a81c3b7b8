#!/usr/bin/env python3
"""EXPERIMENTS.md: every part that experiments make is what experiments/manifest.jsonl says."""
import json
import pathlib
import sys
import tempfile
import unittest

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "experiments/common"))
import quoted  # noqa: E402


class Quoted(unittest.TestCase):
    def test_this_checkout(self):
        self.assertEqual(quoted.faults(), [])

    def test_a_part_is_made_and_held(self):
        kept = quoted.root, quoted.page_file, quoted.manifest_file
        self.addCleanup(lambda: (setattr(quoted, "root", kept[0]), setattr(quoted, "page_file", kept[1]), setattr(quoted, "manifest_file", kept[2])))
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            quoted.root, quoted.page_file, quoted.manifest_file = folder, folder / "EXPERIMENTS.md", folder / "manifest.jsonl"
            (folder / "docs/images").mkdir(parents=True)
            (folder / "run/one").mkdir(parents=True)
            (folder / "run/one/summary.json").write_text("{}")
            (folder / "run/results.md").write_text("# Title\n\n## Part\n\n![a](a.svg)\n")
            (folder / "run/a.svg").write_text("<svg/>")
            quoted.page_file.write_text("before\n<!-- made by experiments/all: x -->\n<!-- end: x -->\nbehind\n")
            self.assertEqual(quoted.faults(), [])
            quoted.put("x", quoted.entry("x", "experiments/x/run", folder / "run", 1.0, 0.0), folder / "run")
            self.assertEqual(quoted.faults(), [])
            text = quoted.page_file.read_text()
            self.assertIn("### Part\n\n![a](docs/images/x_a.svg)\n<!-- end: x -->\nbehind\n", text)
            self.assertTrue((folder / "docs/images/x_a.svg").exists())
            self.assertEqual(list(json.loads(quoted.manifest_file.read_text())["runs"]), ["one"])
            quoted.page_file.write_text(text.replace("experiments/all: x", "experiments/all: y").replace("end: x", "end: y"))
            self.assertEqual(quoted.faults(), ["x: the manifest has it, EXPERIMENTS.md has not", "y: not in the manifest"])
            quoted.page_file.write_text(text.replace("Part", "Other"))
            self.assertEqual(quoted.faults(), ["x: its part was changed by hand, or made by another run than the manifest says"])


if __name__ == "__main__":
    unittest.main()
