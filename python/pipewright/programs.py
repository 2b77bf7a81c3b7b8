"""The three programs: where they are, how options become words, how they are started."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pipewright.errors import Error, ProgramError

INSTALLED = pathlib.Path(__file__).resolve().parent / "installed" / "bin"


def folder() -> pathlib.Path:
    """The folder of the programs: PIPEWRIGHT_PROGRAMS, else the wheel's own. Error where neither has them."""
    given = os.environ.get("PIPEWRIGHT_PROGRAMS")
    found = pathlib.Path(given) if given else INSTALLED
    if not (found / "pipewright-runtime").is_file():
        raise Error(f"there is no program pipewright-runtime in {found}",
                    "Name the folder of a finished build: PIPEWRIGHT_PROGRAMS=build/release/bin." if not given or not found.is_dir() else
                    "Build it: scripts/build release pipewright-profiler pipewright-optimizer pipewright-runtime.")
    return found


def path_of(program: str) -> str:
    """Of "profiler", "optimizer" or "runtime"."""
    return str(folder() / f"pipewright-{program}")


def environment() -> dict[str, str]:
    """That of this process, with the LibTorch of this Python's torch for the programs of the wheel; torch is not imported."""
    torch = None if "TORCH_ROOT" in os.environ else importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return dict(os.environ)
    return {**os.environ, "TORCH_ROOT": torch.submodule_search_locations[0]}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options of a program from arguments of a function: batch_size=8 is --batch-size 8, True the option alone, a list the option again
    for each, None and False nothing.

    >>> words_of({"batch_size": 8, "json": True, "parameter_group": ["a", "b"], "plan": None})
    ['--batch-size', '8', '--json', '--parameter-group', 'a', '--parameter-group', 'b']
    """
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(option)
            elif one is not None and one is not False:
                words += [option, str(one)]
    return words


def spec(name: str | os.PathLike, **options: Any) -> str:
    """A SPEC (docs/formats.md, SPECs) of a name or path and its options; what would separate is escaped.

    >>> spec("text", file="a:b.txt", tokens=64)
    'text:file=a\\\\:b.txt,tokens=64'
    """
    def escaped(value: Any) -> str:
        return "".join("\\" + c if c in "\\:," else c for c in str(value))

    return escaped(os.fspath(name)) + "".join(f"{',' if k else ':'}{key}={escaped(value)}" for k, (key, value) in enumerate(options.items()))


def shown(command: Sequence[str]) -> str:
    """As a shell takes it: the wheel's programs by the names of their console commands."""
    def word(one: str) -> str:
        return pathlib.Path(one).name if pathlib.Path(one).parent == INSTALLED else one

    return shlex.join([word(command[0]), *command[1:]])


def run(program: str, *words: str, **options: Any) -> str:
    """Runs a program, and returns what it printed on standard output; standard error goes to sys.stderr as it comes.

    ProgramError, with the program's own message, where its exit code is not 0.
    """
    command = [path_of(program), *words, *words_of(options)]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace") as process:
        told: list[str] = []

        def listen() -> None:
            for line in process.stderr:  # type: ignore[union-attr]
                told.append(line)
                sys.stderr.write(line)

        listener = threading.Thread(target=listen)
        listener.start()
        output = process.stdout.read()  # type: ignore[union-attr]
        listener.join()
    if process.returncode != 0:
        at = next((k for k in range(len(told) - 1, -1, -1) if ": error: " in told[k]), None)
        said = "" if at is None else told[at].strip()
        remedy = "" if at is None or at + 1 == len(told) else told[at + 1].strip()
        raise ProgramError(command, process.returncode, said or f"exit code {process.returncode}: {shown(command)}", remedy)
    return output


def _become(program: str) -> None:
    try:
        command = path_of(program)
    except Error as error:
        sys.exit(f"pipewright-{program}: error: {error}")
    os.execve(command, [command, *sys.argv[1:]], environment())


def profiler() -> None:
    """The console command pipewright-profiler."""
    _become("profiler")


def optimizer() -> None:
    """The console command pipewright-optimizer."""
    _become("optimizer")


def runtime() -> None:
    """The console command pipewright-runtime."""
    _become("runtime")
