"""What experiments have in common: calling the three programs, lists of names, results that outlive a run."""
import functools
import json
import os
import pathlib
import shlex
import subprocess

here = pathlib.Path(__file__).resolve().parent
programs = pathlib.Path(os.environ.get("PIPEWRIGHT_BIN", here / "../../build/release/bin")).resolve()


class Failed(Exception):
    """A command ended badly; its own words."""


def say(text):
    print(f"== {text}", flush=True)


def error_of(text, otherwise):
    """What a program said of its end: its error, and what it says to do."""
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if "error: " in line]
    return " ".join(line.strip() for line in lines[places[-1]:places[-1] + 2]).split("error: ", 1)[1] if places else otherwise


def call(words, log, **more):
    """Runs a program, all that it prints in `log` behind the command; what it printed on standard output. Throws Failed."""
    words = [str(word) for word in words]
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(words, capture_output=True, text=True, **more)
    except FileNotFoundError as missing:
        raise Failed(f"there is no {missing.filename}: ninja -C build/release builds it, or PIPEWRIGHT_BIN says where it is") from None
    log.write_text(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        raise Failed(error_of(done.stderr, f"exit code {done.returncode}, see {log}"))
    return done.stdout


@functools.cache
def python_with_torch():
    """One that has PyTorch: of PIPEWRIGHT_PYTHON, of build/python, or python3."""
    folders = [os.environ.get("PIPEWRIGHT_PYTHON"), here.parents[1] / "build" / "python"]
    for python in [*(pathlib.Path(folder) / "bin" / "python3" for folder in folders if folder), "python3"]:
        try:
            if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    return None


def names_of(parser, given, known, option):
    """A list such as "a,b" or "all" of the names in `known`."""
    names = list(known) if given == "all" else given.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{option}: unknown '{name}'; known: all, {', '.join(known)}")
    return names


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def write_lines(file, lines):
    """Whole or not at all: a run that is ended leaves the file before it."""
    beside = file.with_suffix(".part")
    beside.write_text("".join(json.dumps(line) + "\n" for line in lines))
    beside.rename(file)


class Results:
    """Lines of JSON, a line for each case. A line stands as long as its settings do, unless it failed or what it needs was not there."""

    def __init__(self, file, place):
        """`place`: the keys that say which case a line is of; one line each."""
        self.file, self.place, self.lines = file, place, lines_of(file)

    def stands(self, key):
        return any(all(line.get(k) == v for k, v in key.items()) and line.get("status", "done") not in ("failed", "unavailable") for line in self.lines)

    def put(self, line):
        self.lines = [other for other in self.lines if any(other.get(k) != line[k] for k in self.place)] + [line]
        write_lines(self.file, self.lines)
