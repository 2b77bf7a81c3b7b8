#!/usr/bin/env python3
"""experiments/*/RESULTS.md: every part that experiments make is what experiments/manifest.jsonl says."""
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
        self.addCleanup(setattr, quoted, "root", quoted.root)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            quoted.root, page = folder, folder / "experiments/b/RESULTS.md"
            for name in ("docs/images", "experiments/a", "experiments/b", "run/one"):
                (folder / name).mkdir(parents=True)
            (folder / "run/one/summary.json").write_text("{}")
            (folder / "run/results.md").write_text("# Title\n\n## Part\n\n![a](a.svg)\n")
            (folder / "run/a.svg").write_text("<svg/>")
            (folder / "experiments/a/RESULTS.md").write_text("no part\n")
            page.write_text("before\n<!-- made by experiments/all: x -->\n<!-- end: x -->\nbehind\n")
            self.assertEqual(quoted.faults(), [])
            quoted.put("x", quoted.entry("x", "experiments/x/run", folder / "run", 1.0, 0.0), folder / "run")
            self.assertEqual(quoted.faults(), [])
            text = page.read_text()
            self.assertIn("### Part\n\n![a](../../docs/images/x_a.svg)\n<!-- end: x -->\nbehind\n", text)
            self.assertTrue((folder / "docs/images/x_a.svg").exists())
            self.assertEqual(list(json.loads((folder / "experiments/manifest.jsonl").read_text())["runs"]), ["one"])
            page.write_text(text.replace("experiments/all: x", "experiments/all: y").replace("end: x", "end: y"))
            self.assertEqual(quoted.faults(), ["x: the manifest has it, no RESULTS.md has", "y: not in the manifest"])
            page.write_text(text + text)
            self.assertEqual(quoted.faults(), ["x: stands 2 times"])
            page.write_text(text.replace("Part", "Other"))
            self.assertEqual(quoted.faults(), ["x: its part was changed by hand, or made by another run than the manifest says"])


if __name__ == "__main__":
    unittest.main()
