"""Parts of experiments/*/RESULTS.md that experiments make: what stands between `<!-- made by experiments/all: NAME -->` and `<!-- end: NAME -->`, and the manifest that says of what."""
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

SCHEMA = "pipewright.experiments/1"
root = pathlib.Path(__file__).resolve().parents[2]


def digest(data):
    return "sha256:" + hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:32]


def machine():
    """Of what kind this machine is."""
    with open("/proc/cpuinfo") as file:
        name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown processor")
    with open("/proc/meminfo") as file:
        memory = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) / 2**20
    return f"{len(os.sched_getaffinity(0))} cores of {re.sub(r'[ ]+', ' ', name)}, {memory:.0f} GiB"


def commit():
    """Of the checkout; with a + where files have been changed since."""
    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()
    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run_digests(folder):
    """Each run folder's summary, by the folder's place in the experiment's."""
    return {str(file.parent.relative_to(folder)): digest(file.read_bytes()) for file in sorted(folder.rglob("summary.json"))}


def entry(name, command, folder, seconds, load):
    """The manifest's line of an experiment that has just run."""
    results = folder / "results.jsonl"
    return {"schema": SCHEMA, "experiment": name, "command": command, "commit": commit(), "date": datetime.date.today().isoformat(), "machine": machine(),
            "load_before": round(load, 1), "seconds": round(seconds), "results": digest(results.read_bytes()) if results.exists() else None, "runs": run_digests(folder)}


def fences(name):
    return f"<!-- made by experiments/all: {name} -->", f"<!-- end: {name} -->"


def part_of(text, name):
    """Where the part lies between its fences, or None."""
    begin, end = fences(name)
    first, last = text.find(begin), text.find(end)
    return (first + len(begin), last) if 0 <= first < last else None


def pages():
    return sorted(root.glob("experiments/*/RESULTS.md"))


def page_of(name):
    """The page that has the part, or None."""
    return next((page for page in pages() if part_of(page.read_text(), name)), None)


def manifest():
    """Its file, and its lines by experiment."""
    file = root / "experiments/manifest.jsonl"
    return file, {line["experiment"]: line for line in map(json.loads, file.read_text().splitlines())} if file.exists() else {}


def made(name, line, folder):
    """The part's text: where it comes from, then the experiment's own page, its headings two deep and its pictures in docs/images.
    Links stay: they are written for a page two folders deep, runs/NAME as well as experiments/NAME."""
    body = re.sub(r"\A# .*\n+", "", (folder / "results.md").read_text())
    body = re.sub(r"^## ", "### ", body, flags=re.MULTILINE)
    for picture in sorted(set(re.findall(r"\]\(([\w.=-]+\.svg)\)", body))):
        kept = f"docs/images/{name}_{picture}"
        shutil.copyfile(folder / picture, root / kept)
        body = body.replace(f"]({picture})", f"](../../{kept})")
    busy = f"; the load of the machine was {line['load_before']:g} when it began" if line["load_before"] >= 0.5 else ""
    return (f"\n{line['date']}, `{line['command']}`, {line['machine']}, commit {line['commit']}, {len(line['runs'])} run folders, "
            f"results {line['results'][:19] if line['results'] else '-'}{busy}.\n\n{body.strip()}\n")


def put(name, line, folder):
    """Writes the part into its page and its line into the manifest."""
    page, part = page_of(name), made(name, line, folder)
    text = page.read_text()
    begin, end = part_of(text, name)
    page.write_text(text[:begin] + part + text[end:])
    file, lines = manifest()
    lines[name] = {**line, "part": digest(part)}
    file.write_text("".join(json.dumps(lines[one]) + "\n" for one in sorted(lines)))


def faults():
    """What in the pages is not what the manifest says: a sentence each."""
    text, (_, lines) = "".join(page.read_text() for page in pages()), manifest()
    names = re.findall(r"<!-- made by experiments/all: (\S+) -->", text)
    found = [f"{name}: the manifest has it, no RESULTS.md has" for name in lines if name not in names]
    found += [f"{name}: stands {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    for name in dict.fromkeys(names):
        place = part_of(text, name)
        if place is None:
            found.append(f"{name}: its part has no end")
        elif name not in lines and not text[place[0]:place[1]].strip():
            continue  # nothing has been measured yet
        elif name not in lines:
            found.append(f"{name}: not in the manifest")
        elif digest(text[place[0]:place[1]]) != lines[name]["part"]:
            found.append(f"{name}: its part was changed by hand, or made by another run than the manifest says")
    return found
