#!/usr/bin/env python3
"""Every page in a real browser: no message on its console, nothing outside its box at 400 and 2000 pixels, text that can be read in light and
dark, tips with the document's values, what moves, and how large and how fast pages of large documents are. Skipped where there is no Chromium:
scripts/setup --browser.

    browser_test.py BIN_DIR
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = os.path.abspath(sys.argv.pop(1))
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MOST_BYTES = 5_000_000
MOST_SECONDS = 2.0

# Runs in the page, and leaves what it found in an element that --dump-dom shows.
CHECKS = r"""
<script>
window.pageErrors = [];
addEventListener('error', event => pageErrors.push(event.message));
addEventListener('load', () => setTimeout(() => {
  const opened = performance.now();
  const rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
  const paper = rgb(getComputedStyle(document.body).backgroundColor);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return paper;
  };
  let least = 99, worst = '';
  const weigh = (value, text) => { if (value < least) { least = value; worst = text; } };
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || parent.closest('svg, script, [hidden], option, select')) continue;
    weigh(contrast(rgb(getComputedStyle(parent).color), behind(parent)), walker.currentNode.data.slice(0, 40));
  }
  const outside = [];
  let texts = 0;
  for (const svg of document.querySelectorAll('svg')) {
    const [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
    const areas = [];
    let tried = 0;
    for (const element of svg.querySelectorAll('rect, text')) {
      if (element.tagName === 'rect') { areas.push([element, element.getBBox()]); continue; }
      if (++tried > 300) break;  // a drawing's texts are all made alike
      ++texts;
      const box = element.getBBox();
      if (box.x < -1 || box.y < -1 || box.x + box.width > width + 1 || box.y + box.height > height + 1)
        outside.push(svg.querySelector('title').textContent + ': ' + element.textContent);
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      let below = paper;
      for (const [area, a] of areas)  // those before it, in the order of drawing
        if (x >= a.x && x <= a.x + a.width && y >= a.y && y <= a.y + a.height) below = rgb(getComputedStyle(area).fill);
      weigh(contrast(rgb(getComputedStyle(element).fill), below), element.textContent);
    }
  }
  for (const element of document.querySelectorAll('main > *, main p, main h1, main h2'))
    if (element.getBoundingClientRect().right > document.documentElement.clientWidth + 1) outside.push(element.outerHTML.slice(0, 60));
  const moved = [];
  for (const box of document.querySelectorAll('[data-prices], [data-times]')) {
    const range = box.querySelector('input'), out = box.querySelector('output'), before = out.textContent;
    range.value = range.max;
    range.dispatchEvent(new Event('input'));
    moved.push([before, out.textContent]);
  }
  const found = document.createElement('pre');
  found.id = 'found';
  found.textContent = JSON.stringify({
    errors: pageErrors, outside: outside, contrast: least, worst: worst, texts: texts, moved: moved, dark: luminance(paper) < 0.5,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, opened: opened,
    names: [...document.querySelectorAll('[tabindex="0"]')].every(e => e.getAttribute('aria-label')),
    figures: [...document.querySelectorAll('svg')].every(e => e.getAttribute('role') === 'img' && e.querySelector('title').textContent)
  });
  document.body.append(found);
}, 0));
</script>
"""


def run(program, *arguments, folder):
    done = subprocess.run([os.path.join(PROGRAMS, "pipewright-" + program), *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"pipewright-{program} {arguments}: {done.returncode}: {done.stderr}")
    return done.stdout


def open_page(page, width, dark):
    """What CHECKS found in the page."""
    text = page.read_text()
    copy = page.with_suffix(".checked.html")
    copy.write_text(text.replace("</body>", CHECKS + "</body>"))
    with tempfile.TemporaryDirectory() as profile:
        began = time.monotonic()
        shown = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
             f"--user-data-dir={profile}", f"--window-size={width},1000", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=4000", "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120)
        seconds = time.monotonic() - began
    console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="found">(.*?)</pre>', shown.stdout, re.S)
    if not found:
        raise AssertionError("the browser did not show the page: " + shown.stderr[-2000:])
    plain = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return {"console": console, "seconds": seconds, **json.loads(plain)}


def grey_blocks(png):
    """The mean grey of each block of 20 x 20 pixels of an 8-bit PNG of RGB or RGBA, not interlaced (W3C PNG, 4 and 9)."""
    data, at, size, packed = png.read_bytes(), 8, None, b""
    while at < len(data):
        length, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            size, channels = (int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")), {2: 3, 6: 4}[body[9]]
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, (width, height) = zlib.decompress(packed), size
    stride, before, sums = width * channels, bytearray(width * channels), {}
    for y in range(height):
        filter_kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride if filter_kind else 0):
            left, up, corner = (row[x - channels], before[x], before[x - channels]) if x >= channels else (0, before[x], 0)
            if filter_kind == 4:
                guess = left + up - corner
                near = min((left, up, corner), key=lambda value: abs(guess - value))
                row[x] = row[x] + near & 255
            else:
                row[x] = row[x] + (0, left, up, (left + up) // 2)[filter_kind] & 255
        for x in range(width):
            block = (x // 20, y // 20)
            sums[block] = sums.get(block, 0) + sum(row[x * channels:x * channels + 3])
        before = row
    return {block: total / 1200 for block, total in sums.items()}


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = folder = pathlib.Path(cls.scratch.name)
        model = "mlp:layers=4,width=32,image=8"
        run("profiler", "--model", model, "--batch-size", 8, "--output", "profile.json", "--repeats", 3, folder=folder)
        run("profiler", "report", "--profile", "profile.json", "--output", "profile.html", folder=folder)
        run("optimizer", "plan", "--profile", "profile.json", "--gpus", 2, "--strategy", "straight", "--output", "plan.json",
            "--report", "plan.html", folder=folder)
        run("optimizer", "compare", "--profile", "profile.json", "--gpus", 4, "--report", "compare.html", folder=folder)
        for command in ("show", "evaluate", "simulate", "check"):
            run("optimizer", command, "--plan", "plan.json", "--profile", "profile.json", "--report", command + ".html", folder=folder)
        for name in ("first", "second"):
            run("runtime", "launch", "--plan", "plan.json", "--model", model, "--data", "synthetic-images:image=8,samples=256",
                "--evaluation-data", "synthetic-images:image=8,samples=64", "--batch-size", 8, "--epochs", 2, "--output", name,
                "--checkpoint-every-epochs", 1, folder=folder)
        run("runtime", "verify", "--run", "first", "--report", "verify.html", folder=folder)
        run("runtime", "report", "first", "--profile", "profile.json", "--output", "run.html", folder=folder)
        run("runtime", "report", "first", "second", "--output", "runs.html", folder=folder)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def check(self, name, found):
        self.assertEqual(found["console"] + found["errors"], [], name)
        self.assertEqual(found["outside"], [], name)
        self.assertLessEqual(found["wide"], 0, name + ": wider than the window")
        self.assertGreaterEqual(found["contrast"], 4.5, name + ": " + found["worst"])
        self.assertTrue(found["names"] and found["figures"], name + ": something has no name for a screen reader")

    def test_every_page_at_every_width_in_light_and_dark(self):
        for name in ("profile", "plan", "compare", "show", "evaluate", "simulate", "check", "verify", "run", "runs"):
            page = self.folder / (name + ".html")
            for width, dark in ((400, False), (2000, True)):
                with self.subTest(page=name, width=width, dark=dark):
                    found = open_page(page, width, dark)
                    self.check(name, found)
                    self.assertEqual(found["dark"], dark)
                    self.assertGreater(found["texts"], 5)
                    for before, after in found["moved"]:
                        self.assertTrue(before and after and before != after, name)

    def test_pages_load_nothing_and_read_without_scripts(self):
        for page in self.folder.glob("*.html"):
            if page.name.endswith(".checked.html"):
                continue
            text = page.read_text()
            for loads in ("src=", "@import", "url(", "http://", "https://"):
                # A link loads nothing before it is followed.
                self.assertNotIn(loads, text.replace("http://www.w3.org/2000/svg", "").replace('<a href="https://ui.perfetto.dev">', ""), page.name)
        for name, control, figures in (("plan", "cuts", "1 layer later"), ("compare", "bandwidth", "fastest"), ("run", "bandwidth", "fastest")):
            still = self.folder / (name + "-still.html")
            still.write_text(re.sub("<script>.*?</script>", "", (self.folder / (name + ".html")).read_text(), flags=re.S))
            found = open_page(still, 1000, False)
            self.check(name, dict(found, moved=[]))
            self.assertRegex(still.read_text(), f'id="{control}" hidden')
            self.assertIn(figures, still.read_text())

    def test_tips_have_the_documents_values(self):
        profile = json.loads((self.folder / "profile.json").read_text())
        text = (self.folder / "profile.html").read_text()
        for layer in {node["layer"] for node in profile["nodes"] if node.get("layer")}:
            self.assertRegex(text, re.escape(layer) + r", forward: [\d.]+ ")
        run_page = (self.folder / "run.html").read_text()
        self.assertIn("predicted</text>", run_page)
        self.assertIn("measured</text>", run_page)
        self.assertIn("Equal to the bit to one process", run_page)
        self.assertIn("reads version", run_page)
        self.assertRegex(run_page, r"this plan takes [\d.]+ .?s a minibatch and data parallelism on the same 2 ranks [\d.]+ .?s: (this plan|data parallelism|neither) is ")
        for link in re.findall(r'<a href="([^"]*)"', run_page):
            self.assertTrue(link == "https://ui.perfetto.dev" or (self.folder / link).is_file(), link)
        self.assertEqual(run_page.count("<a href="), 3)
        parts = re.findall(r"rank 0, (?:compute|time slice|all-reduce|dependency|transfer|samples|fill and drain|other): ([\d.]+) %", run_page)
        self.assertAlmostEqual(sum(map(float, parts)), 100, delta=0.5)

    def test_pages_of_kept_documents_look_as_they_did(self):
        """Blocks of each are as dark as in the kept picture. PIPEWRIGHT_KEEP=1 keeps new ones."""
        fonts = subprocess.run(["fc-match", "Helvetica"], capture_output=True, text=True).stdout if shutil.which("fc-match") else ""
        if "Liberation" not in fonts:
            print("not compared: this machine draws Helvetica with another face than Liberation Sans")
            return
        kept, folder = SOURCE / "tests" / "pages" / "kept", self.folder / "kept"
        shutil.copytree(kept, folder)
        profile, plan = ["--profile", "profile.json", "--bandwidths", "1GB/s"], ["--plan", "run/plan.json"]
        # A second run, which is the first one at half the speed.
        shutil.copytree(folder / "run", folder / "slower")
        summary = json.loads((folder / "run" / "summary.json").read_text())
        summary.update(samples_per_second=summary["samples_per_second"] / 2, minibatch_seconds=summary["minibatch_seconds"] * 2,
                       wall_seconds=summary["wall_seconds"] * 2)
        (folder / "slower" / "summary.json").write_text(json.dumps(summary))
        run("profiler", "report", *profile[:2], "--output", "profile.html", folder=folder)
        run("optimizer", "show", *plan, *profile, "--report", "plan.html", folder=folder)
        run("optimizer", "compare", *profile, "--gpus", 4, "--report", "compare.html", folder=folder)
        run("runtime", "report", "run", *profile, "--output", "run.html", folder=folder)
        run("runtime", "report", "run", "slower", "--output", "runs.html", folder=folder)
        for name in ("profile", "plan", "compare", "run", "runs"):
            page, picture = folder / (name + ".html"), folder / (name + ".now.png")
            subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                            "--blink-settings=preferredColorScheme=1", "--window-size=900,700", f"--screenshot={picture}", page.as_uri()],
                           capture_output=True, timeout=120, check=True)
            if os.environ.get("PIPEWRIGHT_KEEP"):
                shutil.copy(picture, kept / (name + ".png"))
            with self.subTest(page=name):
                now, then = grey_blocks(picture), grey_blocks(kept / (name + ".png"))
                self.assertEqual(now.keys(), then.keys())
                different = {block: (round(then[block]), round(now[block])) for block in now if abs(now[block] - then[block]) > 24}
                self.assertLess(len(different), len(now) // 100, different)

    def test_large_documents_stay_small_and_open_fast(self):
        folder = self.folder / "large"
        folder.mkdir()
        nodes, value = [], "x"
        for i in range(1000):
            nodes.append({"name": f"node{i}", "layer": f"layer{i}", "inputs": [value], "outputs": [{"name": f"v{i}", "bytes": 1 << 20}],
                          "forward_seconds": 1e-3, "backward_input_seconds": 1e-3, "backward_weight_seconds": 1e-3 * (i % 7), "spread": 0.01,
                          "saved_bytes": 1 << 20, "parameter_bytes": 1 << 18, "trainable_parameter_bytes": 1 << 18, "buffer_bytes": 0,
                          "parameters": [f"w{i}"]})
            value = f"v{i}"
        small = json.loads((self.folder / "profile.json").read_text())
        small["nodes"] = nodes
        small["graph_digest"] = ""
        (folder / "profile.json").write_text(json.dumps(small))
        run("profiler", "report", "--profile", "profile.json", "--output", "profile.html", folder=folder)
        run("optimizer", "plan", "--profile", "profile.json", "--gpus", 64, "--strategy", "straight", "--output", "plan.json", "--report",
            "plan.html", folder=folder)
        plan = json.loads((folder / "plan.json").read_text())
        ranks = plan["world_size"]
        self.assertGreaterEqual(ranks, 16)
        # A run of as many ranks: what they did is the simulation's, what they counted is made up.
        run("optimizer", "simulate", "--plan", "plan.json", "--profile", "profile.json", "--minibatches", 64, "--trace", "trace.json",
            folder=folder)
        shutil.copytree(self.folder / "first", folder / "run")
        summary = json.loads((folder / "run" / "summary.json").read_text())
        one = summary["ranks"][0]
        summary["ranks"] = [dict(one, rank=rank, stage=stage) for stage, each in enumerate(plan["stages"]) for rank in each["ranks"]]
        summary["ranks"].sort(key=lambda rank: rank["rank"])
        summary["world_size"] = ranks
        (folder / "run" / "summary.json").write_text(json.dumps(summary))
        (folder / "run" / "plan.json").write_text(json.dumps(plan))
        trace = json.loads((folder / "trace.json").read_text())
        for event in [event for event in trace["traceEvents"] if event["ph"] == "X"]:
            trace["traceEvents"].append({"ph": "C", "name": "memory", "pid": event["pid"], "ts": event["ts"],
                                         "args": {"weights": 1 << 20, "activations": int(event["ts"]) % 1000}})
        (folder / "run" / "trace.json").write_text(json.dumps(trace))
        with open(folder / "run" / "metrics.jsonl", "w") as metrics:
            for i in range(100_000):
                metrics.write(json.dumps({"minibatch": i, "epoch": 0, "loss": math.exp(-i / 3e4) + (i * 7919 % 100) / 1e3, "samples": 8,
                                          "elapsed_seconds": i * 1e-3, "learning_rate": 0.01}) + "\n")
        began = time.monotonic()
        run("runtime", "report", "run", "--output", "run.html", folder=folder)
        made = time.monotonic() - began
        for name in ("profile", "plan", "run"):
            page = folder / (name + ".html")
            found = open_page(page, 1300, False)
            print(f"{name}: {page.stat().st_size} bytes, open after {found['opened'] / 1000:.2f} s")
            self.check(name, found)
            self.assertLess(page.stat().st_size, MOST_BYTES, name)
            self.assertLess(found["opened"] / 1000, 5 * MOST_SECONDS, name)  # machines are busy
        print(f"run.html of {ranks} ranks and 100000 minibatches made in {made:.2f} s")


if __name__ == "__main__":
    if not BROWSER:
        print("SKIPPED: no Chromium; scripts/setup --browser installs one")
        sys.exit(0)
    unittest.main(verbosity=2)
