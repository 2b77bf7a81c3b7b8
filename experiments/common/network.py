"""Links of a given rate between the ranks of a run on one machine: a network namespace and a host name for each rank, joined by a bridge, each with a token bucket (tc tbf) on its way out
and on its way in. Needs root, ip and tc (iproute2), and a system that lets namespaces be made."""
import os
import shutil
import subprocess

import ranks
from experiment import Failed, programs

SUBNET = "10.213.77"
MTU = 9000


def quiet(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


def missing():
    """Why there are no such links here, or None."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "tc", "unshare", "taskset"):
        if not shutil.which(program):
            return f"there is no program {program}"
    with Network(1, "1gbit") as network:
        return network.fault


class Network:
    """`rate` as tc takes it: 200mbit. A context; `fault` says what failed, or is None."""

    def __init__(self, ranks, rate, ranks_of_host=1):
        self.ranks, self.rate, self.ranks_of_host, self.fault = ranks, rate, ranks_of_host, None
        self.hosts = -(-ranks // ranks_of_host)
        self.tag = f"pw{os.getpid() % 100000}"

    def name(self, host):
        return f"{self.tag}n{host}"

    def do(self, *words):
        if self.fault is None:
            done = quiet(*words)
            if done.returncode != 0:
                self.fault = f"{' '.join(map(str, words))}: {done.stderr.strip() or done.returncode}"

    def shape(self, before, device):
        # What the bucket holds goes through at once after a pause, so it must be little against a message; but it takes cores to cut what TCP hands down into packets that small: so two jumbo packets.
        self.do(*before, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, "burst", "20kb", "latency", "200ms")

    def __enter__(self):
        bridge = f"{self.tag}br"
        self.do("ip", "link", "add", bridge, "type", "bridge")
        self.do("ip", "link", "set", bridge, "up")
        for host in range(self.hosts):
            name, outside = self.name(host), f"{self.tag}v{host}"
            inside = ["ip", "netns", "exec", name]
            self.do("ip", "netns", "add", name)
            self.do("ip", "link", "add", outside, "mtu", MTU, "type", "veth", "peer", "name", "eth0", "mtu", MTU, "netns", name)
            self.do("ip", "link", "set", outside, "master", bridge, "up")
            self.do(*inside, "ip", "addr", "add", f"{SUBNET}.{host + 1}/24", "dev", "eth0")
            self.do(*inside, "ip", "link", "set", "eth0", "up")
            self.do(*inside, "ip", "link", "set", "lo", "up")
            self.shape(inside, "eth0")
            self.shape([], outside)
        return self

    def __exit__(self, *_):
        for host in range(self.hosts):
            quiet("ip", "link", "del", f"{self.tag}v{host}")
            quiet("ip", "netns", "del", self.name(host))
        quiet("ip", "link", "del", f"{self.tag}br")

    def run(self, runtime, words, log, seconds, share=1):
        """ranks.run with each rank in its host's namespace."""
        def before(rank):
            # A host name for each host, as ranks of one would take the loopback interface or shared memory.
            host = self.name(rank // self.ranks_of_host)
            return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f"hostname {host} && exec \"$@\"", "sh"]
        return ranks.run(runtime, [*words, "--transport", "gloo"], log, seconds, self.ranks, share, f"{SUBNET}.1", before, {"GLOO_SOCKET_IFNAME": "eth0"})


def run_in(world_size, rate, words, log, ranks_of_host=1):
    """The runtime in such a network; what it prints goes to `log`. Throws Failed."""
    with Network(world_size, rate, ranks_of_host) as links:
        if links.fault:
            raise Failed(links.fault)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        code = links.run(programs / "pipewright-runtime", words, log, 600)
    if code != 0:
        raise Failed(f"exit code {code}, see {log}")
