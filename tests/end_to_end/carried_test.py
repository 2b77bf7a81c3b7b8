#!/usr/bin/env python3
"""The installed tree, moved, from another folder, with nothing of the build in its environment.

    carried_test.py BUILD_DIR TORCH_ROOT
"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

build, torch_root = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)
SMALL = ["--model", "mlp:layers=4,width=16,image=8", "--data", "synthetic-images:image=8,samples=64", "--batch-size", "8", "--no-save"]


class Carried(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="carried-"))
        installed, cls.tree = cls.folder / "installed", cls.folder / "another place"
        done = subprocess.run(["cmake", "--install", build, "--prefix", installed], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        installed.rename(cls.tree)
        cls.elsewhere = cls.folder / "elsewhere"
        cls.elsewhere.mkdir()
        # A cache that is not there: whoever builds has LibTorch in his own.
        cls.environment = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "TORCH_ROOT")}
        cls.environment["PIPEWRIGHT_CACHE"] = str(cls.folder / "no cache")
        loader = importlib.machinery.SourceFileLoader("check_gpu", str(cls.tree / "scripts" / "check_gpu"))
        cls.check_gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_gpu", loader))
        loader.exec_module(cls.check_gpu)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_there(self, *command, torch=torch_root, code=0, **environment):
        environment = {**self.environment, **environment, **({"TORCH_ROOT": torch} if torch else {})}
        done = subprocess.run([str(word) for word in command], cwd=self.elsewhere, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def of_tree(self):
        """Processes that were started from it."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.tree).encode() in file.read_bytes():
                    found.append(int(file.parent.name))
            except OSError:
                pass
        return found

    def test_every_library_is_in_the_tree_or_of_the_runtimes_or_of_torch(self):
        elsewhere = re.compile(r"lib(c|m|dl|rt|util|resolv|pthread|gcc_s|stdc[+][+])[.]so.*|ld-linux.*|lib(torch|c10|gomp|cudart|asan|ubsan|tsan).*")
        for file in [*(self.tree / "libexec").iterdir(), *(self.tree / "lib").iterdir(), self.tree / "bin" / "pipewright-optimizer"]:
            told = subprocess.run(["readelf", "-d", file], capture_output=True, text=True).stdout
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", told)
            self.assertEqual([name for name in needed if not elsewhere.fullmatch(name) and not (self.tree / "lib" / name).exists()], [], file)
            if file.parent.name != "lib":
                self.assertIn("(RPATH)              Library rpath: [$ORIGIN/../lib]", told, file)

    def test_the_programs_start(self):
        for program in ("pipewright-optimizer", "pipewright-profiler", "pipewright-runtime", "test_cuda", "profile_cuda_test", "benchmark_device"):
            option = "--version" if program.startswith("pipewright") else "--help"
            self.run_there(self.tree / "bin" / program, option)
        (self.elsewhere / "linked").symlink_to(self.tree / "bin" / "pipewright-runtime")
        self.assertIn("LibTorch 2.", self.run_there("./linked", "--version"))

    def test_what_is_no_torch_of_this_version_is_refused(self):
        said = self.run_there(self.tree / "bin" / "pipewright-runtime", "--version", torch="/nowhere", code=2)
        self.assertIn("expected, none found: TORCH_ROOT=/nowhere", said)
        other = self.folder / "torch"
        other.mkdir()
        (other / "version.py").write_text("__version__ = '1.13.1+cu117'\n")
        self.assertIn("expected, 1.13.1+cu117 found", self.run_there(self.tree / "bin" / "pipewright-runtime", "--version", torch=other, code=2))

    def test_torch_of_the_python_on_the_path(self):
        site = self.folder / "site"
        site.mkdir()
        (site / "torch").symlink_to(torch_root)
        self.assertIn("LibTorch 2.", self.run_there(self.tree / "bin" / "pipewright-runtime", "--version", torch=None, PYTHONPATH=str(site)))

    def test_torch_of_scripts_setup_where_no_python_has_one(self):
        bare = self.folder / "bare"  # no python3 in it
        bare.mkdir()
        for tool in ("sh", "sed", "readlink"):
            (bare / tool).symlink_to(shutil.which(tool))
        start, home = [self.tree / "bin" / "pipewright-runtime", "--version"], self.folder / "home"
        version = re.search("^__version__ = '([0-9.]+)", (pathlib.Path(torch_root) / "version.py").read_text(), re.MULTILINE)[1]
        for place in (home / ".cache" / "pipewright", home / "xdg" / "pipewright", home / "own"):
            (place / "torch-1.13.1" / "torch").mkdir(parents=True)  # of another version
            unpacked = place / f"torch-{version}"
            unpacked.mkdir()
            (unpacked / "torch").symlink_to(torch_root)
        for names in ({"PIPEWRIGHT_CACHE": str(home / "own")}, {"PIPEWRIGHT_CACHE": "", "XDG_CACHE_HOME": str(home / "xdg")},
                      {"PIPEWRIGHT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": str(home)}):
            with self.subTest(names=names):
                self.assertIn("LibTorch 2.", self.run_there(*start, torch=None, PATH=str(bare), **names))
        said = self.run_there(*start, torch=None, code=2, PATH=str(bare))
        self.assertIn(f"none found: no python3 on the path, then {self.folder}/no cache, as TORCH_ROOT is not set", said)

    def test_the_wheel_s_programs_run_on_the_torch_of_their_python(self):
        site = self.folder / "wheel"
        shutil.copytree(self.tree / "python", site)
        for component in ("programs", "bundled"):
            done = subprocess.run(["cmake", "--install", build, "--component", component, "--prefix", site / "pipewright" / "installed"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({file.name for file in (site / "pipewright" / "installed" / "bin").iterdir()},
                         {"pipewright-optimizer", "pipewright-profiler", "pipewright-runtime"})
        for program in ("optimizer", "profiler", "runtime"):
            command = [sys.executable, "-c", f"from pipewright.programs import {program}; {program}()", "--version"]
            if importlib.util.find_spec("torch") is None:
                without = self.run_there(*command, torch=None, code=0 if program == "optimizer" else 2, PYTHONPATH=str(site))
                self.assertIn("Pipewright" if program == "optimizer" else "expected, none found: ", without)
            (site / "torch").symlink_to(torch_root)
            self.assertIn("Pipewright", self.run_there(*command, torch=None, PYTHONPATH=str(site)))
            (site / "torch").unlink()

    def test_training(self):
        runtime = self.tree / "bin" / "pipewright-runtime"
        self.assertIn("8 minibatches in", self.run_there(runtime, "train", *SMALL, "--output", "one"))
        self.run_there(runtime, "launch", *SMALL, "--ranks", "2", "--output", "two")
        self.assertEqual(json.loads((self.elsewhere / "two" / "summary.json").read_text())["world_size"], 2)

    def test_ranks_on_other_hosts_find_their_libraries(self):
        (self.elsewhere / "hosts").write_text("left\nright\n")
        rsh = self.elsewhere / "rsh"
        rsh.write_text('#!/bin/sh\nshift\nunset LD_LIBRARY_PATH\nexec sh -c "$*"\n')
        rsh.chmod(0o755)
        self.run_there(self.tree / "bin" / "pipewright-runtime", "launch", *SMALL, "--hosts", "hosts", "--rsh", rsh, "--master-addr", "127.0.0.1", "--output", "hosts-run")

    def test_the_debian_package(self):
        if not (shutil.which("dpkg-shlibdeps") and shutil.which("file")):
            self.skipTest("no dpkg-shlibdeps and file on this machine")
        made = subprocess.run(["cpack", "--config", build / "CPackConfig.cmake", "-G", "DEB", "-B", self.folder / "package"], capture_output=True, text=True, env={**os.environ, "DEBFULLNAME": "Who Makes It", "DEBEMAIL": "packages@this.example"})
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        package, = (self.folder / "package").glob("*.deb")
        self.assertEqual(self.run_there("dpkg-deb", "--field", package, "Maintainer").strip(), "Who Makes It <packages@this.example>")
        depends = re.findall(r"([a-z0-9.+-]+)(?: \([^)]*\))?", self.run_there("dpkg-deb", "--field", package, "Depends"))
        there = self.folder / "debian root"
        self.run_there("dpkg-deb", "-x", package, there)
        # Nothing lies in a folder that other packages share, but what is found there by its name.
        files = sorted(str(file.relative_to(there)) for file in there.rglob("*") if not file.is_dir() and "usr/lib/pipewright" not in str(file))
        self.assertEqual([file for file in files if not re.fullmatch(r"usr/(bin|share/(bash-completion|fish|man|zsh)/.*|share/doc/pipewright)/_?(pipewright-[a-z]+.*|pipewright|copyright)", file)], [])
        self.assertEqual(len([file for file in files if file.startswith("usr/bin/")]), 3)
        # Every library of the system that a program needs is of a package that is named.
        for file in [*(there / "usr/lib/pipewright/libexec").iterdir(), there / "usr/lib/pipewright/bin/pipewright-optimizer"]:
            for name, library in re.findall(r"^\s*(\S+) => (\S+)", subprocess.run(["ldd", file], capture_output=True, text=True).stdout, re.MULTILINE):
                needed = f"[{name}]" in subprocess.run(["readelf", "-d", file], capture_output=True, text=True).stdout
                if needed and "torch" not in name and "c10" not in name:
                    found = subprocess.run(["dpkg", "-S", f"*/{name}"], capture_output=True, text=True).stdout
                    self.assertTrue({line.split(":")[0] for line in found.splitlines()} & set(depends), (name, found, depends))
        for program in ("pipewright-optimizer", "pipewright-profiler", "pipewright-runtime"):
            self.assertIn("Pipewright", self.run_there(there / "usr/bin" / program, "--version"))

    def test_a_program_of_others_finds_the_libraries_and_plans_as_ours(self):
        if re.search("^PIPEWRIGHT_SANITIZE:STRING=.", (build / "CMakeCache.txt").read_text(), re.MULTILINE):
            self.skipTest("the libraries have sanitizers in them, which the program has not")
        examples = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"
        at_first, libraries = self.folder / "development", self.folder / "libraries elsewhere"
        self.run_there("cmake", "--install", build.resolve(), "--component", "development", "--prefix", at_first)
        at_first.rename(libraries)
        self.run_there("cmake", "-S", examples / "find_package", "-B", "example", f"-DCMAKE_PREFIX_PATH={libraries}")
        self.run_there("cmake", "--build", "example")
        self.run_there(self.tree / "bin" / "pipewright-optimizer", "plan", "--profile", examples / "profile.json", "--gpus", "2", "--output", "plans")
        self.assertEqual(self.run_there("example/plan_for", examples / "profile.json", "2"), (self.elsewhere / "plans" / "gpus=2.json").read_text())

    def completed(self, shell, *words):
        """What the shell, which knows the installed files only, completes these words of a command with."""
        share = self.tree / "share"
        scripts = {
            "bash": f"""source '{share}/bash-completion/completions/{words[0]}'
                complete -p "$1" | grep -q 'default -F _pipewright' || exit 1
                COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _pipewright "$1" "${{@: -1}}"; printf '%s\n' "${{COMPREPLY[@]}}" """,
            # The builtins that show what was found only work in an editor.
            "zsh": f"""compadd() {{ shift; print -rl -- ${{(M)@:#$PREFIX*}} }}; _files() {{ print -rl -- $PREFIX*(N) }}
                _describe() {{ print -rl -- ${{${{(P)2}}%%:*}} | grep -e "^$PREFIX" }}
                fpath=('{share}/zsh/site-functions'); autoload -U _pipewright
                asked() {{ local -a words=("$@"); local CURRENT=$# PREFIX=${{@[-1]}}; _pipewright }}; asked "$@" """,
            "fish": f"""set -p fish_complete_path '{share}/fish/vendor_completions.d'; complete -C "$argv" | string split -f 1 \\t; true""",
        }
        command = {"bash": ["bash", "--norc", "-c", scripts["bash"], "bash"], "zsh": ["zsh", "-f", "-c", scripts["zsh"], "zsh"], "fish": ["fish", "-c", scripts["fish"]]}[shell]
        return self.run_there(*command, *words, PATH=f"{self.tree / 'bin'}:{os.environ['PATH']}", HOME=str(self.folder)).split()

    def test_shells_complete_what_the_programs_say(self):
        (self.elsewhere / "profiled.json").touch()
        missing = [shell for shell in ("bash", "zsh", "fish") if not shutil.which(shell)]
        for shell in {"bash", "zsh", "fish"} - set(missing):
            with self.subTest(shell=shell):
                self.assertEqual(self.completed(shell, "pipewright-optimizer", "cal"), ["calibrate"])
                self.assertEqual(set(self.completed(shell, "pipewright-runtime", "pr")), {"predict", "probe"})
                self.assertEqual(set(self.completed(shell, "pipewright-optimizer", "plan", "--stra")), {"--strategy"})
                self.assertEqual(set(self.completed(shell, "pipewright-profiler", "--mod")), {"--model"})
                # bash completes names of files by itself where nothing else was found.
                self.assertEqual(self.completed(shell, "pipewright-optimizer", "plan", "--profile", "profi"), [] if shell == "bash" else ["profiled.json"])
        if missing:
            self.skipTest(f"not on this machine: {', '.join(missing)}; the others passed")

    def test_manual_pages(self):
        for program in ("pipewright-optimizer", "pipewright-profiler", "pipewright-runtime"):
            page = self.tree / "share" / "man" / "man1" / f"{program}.1"
            text = page.read_text().replace("\\-", "-")
            told = self.run_there(self.tree / "bin" / program, "--help")
            for command in re.findall(r"^  ([a-z-]+) ", told.split("\nCommands")[1].split("\n\n")[0], re.MULTILINE):
                self.assertIn(f"\n.SH {command.upper()}\n", text)
            first = re.search(r"without one: (\S+)\)", told)[1]
            options = re.findall(r"^  (--[a-z0-9-]+)", self.run_there(self.tree / "bin" / program, first, "--help-all"), re.MULTILINE)
            self.assertEqual([option for option in options if f"\\fB{option}\\fR" not in text], [])
            reference = (self.tree / "share" / "doc" / "pipewright" / f"{program}.md").read_text()
            self.assertEqual([option for option in options if f"| `{option}" not in reference], [])
            if shutil.which("groff"):
                self.assertEqual(self.run_there("groff", "-man", "-ww", "-z", "-Tutf8", page), "")

    def test_check_gpu(self):
        self.run_there(self.tree / "scripts" / "check_gpu", "--device", "cpu", "--only", "nccl", "--output", "report.md")
        document = json.loads((self.elsewhere / "report.json").read_text())
        self.assertEqual(document["failed"], 0)
        apart = [figure for figure in document["figures"] if "relative" in figure["name"]]
        self.assertEqual(len(apart), 4)
        self.assertTrue(all(figure["met"] for figure in apart), apart)
        self.assertIn(apart[0]["name"], (self.elsewhere / "report.md").read_text())

    def test_check_gpu_that_is_stopped_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with subprocess.Popen([self.tree / "scripts" / "check_gpu", "--device", "cpu", "--only", "nccl", "--output", "stopped.md"], cwd=self.elsewhere,
                                  env={**self.environment, "TORCH_ROOT": torch_root}, stdout=subprocess.PIPE, text=True) as check:
                for line in check.stdout:
                    if "1f1b-flush: passed" in line:  # ranks are next
                        break
                check.send_signal(number)
                check.stdout.read()
            self.assertEqual(check.returncode, -number if number == signal.SIGKILL else 128 + number)
            if number != signal.SIGKILL:
                self.assertEqual(self.of_tree(), [])
                stopped = json.loads((self.elsewhere / "stopped.json").read_text())
                self.assertIn("stopped by " + number.name, stopped["steps"][-1]["result"])
        # Killed, it can only leave word: what it had started is told to end.
        self.assertTrue(self.check_gpu.wait(lambda: not self.of_tree(), self.check_gpu.time.monotonic() + 120))

    def test_check_gpu_ends_what_does_not_want_to(self):
        log = self.folder / "stubborn.log"
        process = self.check_gpu.begin_process(["sh", "-c", "trap '' TERM; sleep 600 & echo begun; wait"], log)
        self.assertTrue(self.check_gpu.wait(lambda: "begun" in log.read_text(), self.check_gpu.time.monotonic() + 120))
        self.assertFalse(self.check_gpu.wait(lambda: process.poll() is not None, 0))
        self.assertEqual(self.check_gpu.end_process(process), 1)  # beside itself
        self.assertEqual(self.check_gpu.members(process.pid), [])

    def test_check_gpu_refuses(self):
        check = self.tree / "scripts" / "check_gpu"
        self.assertIn("Did you mean 'memory'?", self.run_there(check, "--only", "memroy", code=2))
        self.assertIn("no program /nowhere/", self.run_there(check, "--programs", "/nowhere", code=2))
        self.assertIn("nothing to check on 'cuda:63'", self.run_there(check, "--device", "cuda:63", "--only", "truth", code=2))

    def test_figures_and_their_aims(self):
        found = self.check_gpu.FIGURE.findall("a\nfigure: a: b, c: 1.5e-3 us (aim <= 1e-2)\nfigure: d (e): 3\nfigure: f: nan MiB (aim 95 .. 105)\n")
        self.assertEqual(found, [("a: b, c", "1.5e-3", "us", "<= 1e-2"), ("d (e)", "3", "", ""), ("f", "nan", "MiB", "95 .. 105")])
        report = self.check_gpu.Report(type("Arguments", (), {"output": "x.md", "device": "cpu"}))
        for value, aim, met in ((1.0, "<= 1.05", True), (1.1, "<= 1.05", False), (2.0, ">= 1e1", False), (100, "95 .. 105", True), (94, "95 .. 105", False),
                                (float("nan"), "<= 1", False), (1.0, "", None)):
            report.figure("x", value, "", aim)
            self.assertEqual(report.figures[-1]["met"], met, (value, aim))


unittest.main(verbosity=2)
