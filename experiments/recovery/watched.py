"""A launched run that is watched from outside: its ranks are killed, what it holds is sampled, and what it wrote is compared with a run to which nothing happened."""
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from experiment import Failed, lines_of, say  # noqa: E402

LOOK = 0.005  # seconds between two looks at metrics.jsonl
SAMPLE = 1.0  # and between two samples
TAIL = 1 << 18  # bytes of a metrics.jsonl that was written anew that are looked through


class Metrics:
    """Follows metrics.jsonl, which a run that goes on writes anew, or cuts where its lines end: the last minibatch, and the line of a recovery."""

    def __init__(self, file):
        self.file, self.open, self.inode, self.rest = file, None, None, b""
        self.recovers = False  # a cut may come, and be behind lines that were written since: the file's end is read again and again
        self.attempt, self.recovery = 0, None  # of the newest recovery: which start of the ranks, what it says
        self.minibatch, self.when = -1, time.monotonic()  # of the newest line
        self.lines = 0  # of minibatches behind the newest recovery

    def look(self):
        try:
            status = os.stat(self.file)
        except FileNotFoundError:
            return
        if self.recovers or status.st_ino != self.inode or status.st_size < self.open.tell():
            if self.open:
                self.open.close()
            self.open, self.rest = open(self.file, "rb"), b""
            self.inode = os.fstat(self.open.fileno()).st_ino
            size = os.fstat(self.open.fileno()).st_size
            if size > TAIL:
                self.open.seek(size - TAIL)
                self.open.readline()
        *whole, self.rest = (self.rest + self.open.read()).split(b"\n")
        for line in whole:
            if line.startswith(b'{"recovery"'):
                told = json.loads(line)["recovery"]
                if told["attempt"] > self.attempt:
                    self.attempt, self.recovery, self.lines = told["attempt"], told, 0
            elif line.startswith(b'{"minibatch"'):
                self.lines += 1
                self.minibatch, self.when = int(line[13:line.index(b",")]), time.monotonic()


def status_of(process):
    with open(f"/proc/{process}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def memory_of(process):
    """Resident KiB; 0 of one that has ended."""
    try:
        return int(status_of(process).get("VmRSS", "0 kB").split()[0])
    except (OSError, ValueError):
        return 0


def entries_below(folder):
    """Files, folders and links, and their bytes."""
    count, total = 0, 0
    for place, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                pass  # it has gone meanwhile
    return count, total


def kept_in(run):
    """The links of a run to what its hosts keep in their memory."""
    return [place for place in run.glob(".kept-*") if place.is_symlink()]


def remove(run):
    """A run folder, and what a launcher that was killed left of it in shared memory."""
    for kept in kept_in(run):
        shutil.rmtree(os.readlink(kept), ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)


class WatchedRun:
    """`words`: of `pipewright-runtime launch`. `run`: its folder."""

    def __init__(self, words, run, ranks, patience):
        self.run, self.ranks, self.patience = run, ranks, patience
        run.parent.mkdir(parents=True, exist_ok=True)
        remove(run)
        self.log = run.with_name(run.name + ".log")
        with open(self.log, "w") as out:
            try:
                self.process = subprocess.Popen([str(word) for word in words], stdout=out, stderr=subprocess.STDOUT)
            except FileNotFoundError as missing:
                raise Failed(f"there is no {missing.filename}: ninja -C build/release builds it, or PIPEWRIGHT_BIN says where it is") from None
        self.metrics = Metrics(run / "metrics.jsonl")
        self.begin = time.monotonic()
        self.samples, self.next_sample = [], self.begin
        self.kept, self.seen = set(), set()  # folders in shared memory that were the run's; ranks' processes
        self.kills, self.faults, self.hangs, self.recovered = [], [], 0, self.begin

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        if not self.ended():  # we were interrupted
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def silent(self):
        """Seconds since the last line of a minibatch."""
        return time.monotonic() - self.metrics.when

    def seconds(self):
        return time.monotonic() - self.begin

    def processes(self):
        """Of the ranks that run now, by rank."""
        found, launcher = {}, self.process.pid
        try:
            with open(f"/proc/{launcher}/task/{launcher}/children") as file:
                children = file.read().split()
        except OSError:
            return found
        for child in children:
            try:
                with open(f"/proc/{child}/environ", "rb") as file:
                    rank = next((word[5:] for word in file.read().split(b"\0") if word.startswith(b"RANK=")), None)
                if rank is not None and status_of(child)["State"][0] not in "ZX":
                    found[int(rank)] = int(child)
            except (OSError, KeyError):
                pass  # it has ended meanwhile
        self.seen.update(found.values())
        return found

    def sample(self):
        self.next_sample = time.monotonic() + SAMPLE
        launcher = self.process.pid
        try:
            status = status_of(launcher)
            self.kept.update(os.readlink(place) for place in kept_in(self.run))
            in_memory = [entries_below(folder) for folder in self.kept if os.path.isdir(folder)]
            files, file_bytes = entries_below(self.run)
            self.samples.append({
                "seconds": round(self.seconds(), 1), "kills": len(self.kills), "minibatch": self.metrics.minibatch, "load": round(os.getloadavg()[0], 1),
                "launcher_kib": int(status["VmRSS"].split()[0]), "launcher_threads": int(status["Threads"]), "launcher_descriptors": len(os.listdir(f"/proc/{launcher}/fd")),
                "rank_kib": max(map(memory_of, self.processes().values()), default=0),
                "kept_folders": len(in_memory), "kept_entries": sum(count for count, _ in in_memory), "kept_bytes": sum(size for _, size in in_memory),
                "run_files": files, "run_bytes": file_bytes})
        except (OSError, KeyError):
            pass  # it has ended meanwhile

    def ended(self):
        return self.process.poll() is not None

    def wait(self, until, deadline=None):
        """Looks until `until()`; whether that came before the end of the run and the deadline (of time.monotonic). Failed where no line comes in `patience` seconds."""
        while not until():
            if self.ended() or (deadline and time.monotonic() > deadline):
                self.metrics.look()
                return until()
            if self.metrics.minibatch >= 0 and self.silent() > self.patience:
                self.hangs += 1
                self.give_up(f"silent for {self.patience:.0f} s after minibatch {self.metrics.minibatch}, {len(self.kills)} kills were recovered from")
            if time.monotonic() > self.next_sample:
                self.sample()
            time.sleep(LOOK)
            self.metrics.look()
        return True

    def trains(self):
        """Waits for the first minibatch."""
        if not self.wait(lambda: self.metrics.minibatch >= 0, time.monotonic() + 300):
            self.give_up("no minibatch was finished at the start")

    def give_up(self, why):
        """Ends what is left of the run, with what it was doing."""
        with open(self.run.with_name(self.run.name + ".hang.txt"), "w") as file:
            file.write(f"{why}\n")
            for rank, process in {-1: self.process.pid, **self.processes()}.items():
                for thread in sorted(os.listdir(f"/proc/{process}/task")) if os.path.isdir(f"/proc/{process}/task") else []:
                    try:
                        words = [pathlib.Path(f"/proc/{process}/task/{thread}/{what}").read_text().strip() for what in ("comm", "wchan")]
                        file.write(f"{'launcher' if rank < 0 else f'rank {rank}'}, process {process}, thread {thread}: {' '.join(words)}\n")
                    except OSError:
                        pass
        left = self.processes()
        if not self.ended():
            self.process.kill()
        for process in left.values():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        raise Failed(f"{why}; see {self.run.name}.hang.txt and {self.log.name}")

    def kill(self, rank):
        """Kills a rank, and waits for the next minibatch that is finished behind it. Whether there was one; not, where the run came to its end."""
        self.wait(lambda: len(self.processes()) == self.ranks, time.monotonic() + self.patience)
        process = self.processes().get(rank)
        if process is None:
            if not self.ended():
                self.give_up(f"rank {rank} has no process")
            return False
        load, before, attempt, silent = os.getloadavg()[0], self.metrics.minibatch, self.metrics.attempt, self.silent()
        when = time.monotonic()
        os.kill(process, signal.SIGKILL)
        self.metrics.recovers = True
        recovered = self.wait(lambda: self.metrics.attempt > attempt and self.metrics.lines > 0)
        self.metrics.recovers = False
        if not recovered:
            return False
        line = {"kill": len(self.kills) + 1, "rank": rank, "at_seconds": round(when - self.begin, 3), "minibatch": before, "silent_seconds": round(silent, 3), "seconds": round(time.monotonic() - when, 3)}
        told = self.metrics.recovery
        again = told["again_minibatches"]
        further = self.wait(lambda: self.metrics.minibatch >= told["next_minibatch"] + again)
        line |= {"new_seconds": round(time.monotonic() - when, 3) if further else None, "again": again, "from": told["from"], "noticed_seconds": round(told["seconds"], 3),
                 "attempts": self.metrics.attempt - attempt, "load": round(load, 1)}
        self.kills.append(line)
        self.recovered = time.monotonic()
        return True

    def finish(self):
        """To the end of the run."""
        self.wait(self.ended)
        if self.process.returncode != 0:
            self.faults.append(f"exit code {self.process.returncode}: {self.log.read_text().splitlines()[-2:]}")
        left = [folder for folder in self.kept if os.path.exists(folder)]
        left += [str(place) for place in self.run.glob(".kept*")]
        if left:
            self.faults.append(f"left behind: {', '.join(left)}")
        for process in self.seen:
            try:
                if memory_of(process) and f"--output\0{self.run}\0" in pathlib.Path(f"/proc/{process}/cmdline").read_text():
                    self.faults.append(f"process {process} of a rank has not ended")
            except OSError:
                pass

    def times(self):
        """Median, 90th percentile and worst, and what else is told of the kills."""
        if not self.kills:
            return {}
        seconds = sorted(line["seconds"] for line in self.kills)
        quarter = max(1, len(seconds) // 4)
        new = [line["new_seconds"] for line in self.kills if line["new_seconds"] is not None]
        return {"median_seconds": statistics.median(seconds), "percentile_90_seconds": seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))], "worst_seconds": seconds[-1],
                "first_quarter_median_seconds": statistics.median(line["seconds"] for line in self.kills[:quarter]),
                "last_quarter_median_seconds": statistics.median(line["seconds"] for line in self.kills[-quarter:]),
                "worst_silent_seconds": max(line["silent_seconds"] for line in self.kills), "median_new_seconds": statistics.median(new) if new else None, "median_again": statistics.median(line["again"] for line in self.kills),
                "kills_of_rank": {str(rank): sum(line["rank"] == rank for line in self.kills) for rank in range(self.ranks)},
                "from": {place: sum(line["from"] == place for line in self.kills) for place in sorted({line["from"] for line in self.kills})}}

    def growth(self):
        """What the launcher, the greatest rank, shared memory and the run folder held, as long as kills came, in the second and in the last quarter: medians, and the most threads and descriptors, of which there is one number while
        ranks run and another while they start, about as often. The first quarter is the start."""
        samples = [sample for sample in self.samples if sample["kills"] < len(self.kills)]
        n = len(samples)
        early, late = samples[n // 4:n // 2], samples[n - n // 4:]
        if not early or not late:
            return {}
        keys = {"launcher_kib": statistics.median, "launcher_threads": max, "launcher_descriptors": max, "rank_kib": statistics.median, "kept_folders": statistics.median, "kept_entries": statistics.median,
                "kept_bytes": statistics.median, "run_files": statistics.median}
        return {key: [of(sample[key] for sample in part) for part in (early, late)] for key, of in keys.items()}

    def grown(self):
        """What has grown, in words; nothing of a run that is too short to say. A checkpoint that is on its way adds to what is kept."""
        if len(self.samples) < 40:
            return []
        slack = {"launcher_kib": 1024, "rank_kib": 16384}
        return [f"{key} grew from {early} to {late}" for key, (early, late) in self.growth().items()
                if late > (1.5 * early if key in ("kept_entries", "kept_bytes") else 1.02 * early + slack[key] if key in slack else early)]


def told(run):
    """Of the minibatches and evaluations of a run, without what is of the moment."""
    lines = [line for line in lines_of(run / "metrics.jsonl") if "minibatch" in line or "evaluation" in line]
    return [{key: value for key, value in line.items() if key not in ("elapsed_seconds", "again")} for line in lines]


def differences(run, reference, minibatches):
    """In words, between a run and one to which nothing happened."""
    faults, mine, quiet = [], told(run), told(reference)
    numbers = [line["minibatch"] for line in mine if "minibatch" in line]
    if numbers != list(range(minibatches)):
        faults.append(f"minibatches in metrics.jsonl: {len(numbers)} lines, {len(set(numbers))} different ones of {minibatches}")
    if mine != quiet:
        first = next((i for i, (a, b) in enumerate(zip(mine, quiet)) if a != b), min(len(mine), len(quiet)))
        faults.append(f"metrics.jsonl differs from line {first + 1} of minibatches on: {mine[first:first + 1]}, undisturbed {quiet[first:first + 1]}")
    if not (run / "model.safetensors").exists() or (run / "model.safetensors").read_bytes() != (reference / "model.safetensors").read_bytes():
        faults.append("model.safetensors differs")
    return faults


def kill_often(watched, kills, seed, comes, late):
    """Kills `kills` random ranks. `comes(k)`: waits until the time of kill k has come; whether it did before the run's end."""
    random_rank = random.Random(seed)
    watched.trains()
    for k in range(kills):
        rank = random_rank.randrange(watched.ranks)
        if not comes(k) or not watched.kill(rank):
            done = watched.ended() and watched.process.returncode == 0
            watched.faults.append(f"the run ended after {len(watched.kills)} of {kills} kills" + (f": {late}" if done else ""))
            break
        line = watched.kills[-1]
        say(f"kill {line['kill']} of {kills}: rank {rank} at minibatch {line['minibatch']}: {line['seconds']:.2f} s to the next one; again {line['again']}, from {line['from']}; load {line['load']}")
