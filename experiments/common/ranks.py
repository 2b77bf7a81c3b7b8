"""Ranks started one by one, each on a core, or on a share of one: four ranks on two cores are four devices of half a core each, as long as none computes for more than half of the time.
A share is a control group with a processor quota (cgroup 1 or 2). Needs root and a system that lets groups be made."""
import contextlib
import os
import pathlib
import secrets
import socket
import subprocess

PERIOD_MICROSECONDS = 4000  # short against a minibatch; below a tick of the kernel (4 ms at 250 Hz) shares come out smaller than they should


def cores():
    return sorted(os.sched_getaffinity(0))


def share_for(ranks):
    """Of a core, for each of so many ranks on this host."""
    return min(1, len(cores()) / ranks)


class Shares:
    """A control group for each rank. A context; `fault` says what failed, or is None. With a share of 1 there are no groups."""

    def __init__(self, ranks, share):
        self.ranks, self.share, self.fault, self.groups = ranks, share, None, []

    def __enter__(self):
        if self.share >= 1:
            return self
        quota = round(PERIOD_MICROSECONDS * self.share)
        first, second = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")
        try:
            if not first.is_dir():
                (second / "cgroup.subtree_control").write_text("+cpu")
            for rank in range(self.ranks):
                group = (first if first.is_dir() else second) / f"pipewright{os.getpid()}.{rank}"
                group.mkdir()
                self.groups.append(group)
                if first.is_dir():
                    (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                    (group / "cpu.cfs_quota_us").write_text(str(quota))
                else:
                    (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        except OSError as error:
            self.fault = f"no shares of cores: {error}"
        return self

    def __exit__(self, *_):
        for group in self.groups:
            with contextlib.suppress(OSError):
                group.rmdir()

    def words(self, rank):
        """In front of a command that is to run in the rank's group."""
        return ["sh", "-c", f"echo $$ > {self.groups[rank]}/cgroup.procs && exec \"$@\"", "sh"] if self.groups else []


def missing():
    """Why there are no shares of cores here, or None."""
    if os.geteuid() != 0:
        return "no shares of cores: not root"
    with Shares(1, 0.5) as shares:
        return shares.fault


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run(runtime, words, log, seconds, ranks, share=1, master="127.0.0.1", before=lambda rank: [], environment=()):
    """Starts each rank on a core of its own, or with its share of one; ranks that are more than the cores and have no shares take turns on all of them. `before`: the beginning of a rank's command.
    The worst exit code; what they print goes to `log`. None is left running."""
    there = cores()
    turns = share >= 1 and ranks > len(there)
    common = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR=master, MASTER_PORT=str(free_port()), PIPEWRIGHT_JOB_SECRET=secrets.token_hex(32), **dict(environment))
    with Shares(ranks, share) as shares, open(log, "a") as out:
        if shares.fault:
            out.write(shares.fault + "\n")
            return 1
        processes, codes = [], []
        try:
            for rank in range(ranks):
                own = there if turns else [there[rank % len(there)]]
                start = [*shares.words(rank), *before(rank), "taskset", "-c", ",".join(map(str, own)), runtime, *words]
                processes.append(subprocess.Popen([str(word) for word in start], env={**common, "RANK": str(rank)}, stdout=out, stderr=subprocess.STDOUT))
            for process in processes:
                try:
                    codes.append(process.wait(seconds))
                except subprocess.TimeoutExpired:
                    process.kill()
                    codes.append(process.wait() or 124)
        finally:  # when this is ended, too
            for process in processes:
                process.kill()
                process.wait()
    return max(abs(code) for code in codes)
