"""What papers state, and where; and how their clusters are described to the optimizer.

PipeDream: Narayanan et al., SOSP 2019, Table 1 and section 5; its profiles are those of its repository (profiler/*/profiles/MODEL/graph.txt).
DDLBench: Jansen et al., DLS at SC 2020, and M. Jansen's thesis, chapters 3 to 6. SDPipe: Miao et al., PVLDB 16(9), 2023, appendix.
DynPipe: the data files beside its figures 9, 10 and 13. PipeTransformer: He et al., ICML 2021, and its repository."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Servers of devices; bandwidths as the optimizer takes them: inside a server, and of a server's link."""
    about: str
    in_server: int
    inside: str
    outside: str

    def levels(self, servers, devices):
        """The optimizer's options for so many servers of so many devices."""
        if servers == 1:
            return ["--gpus", devices, "--bandwidths", self.inside]
        if devices == 1:
            return ["--gpus", servers, "--bandwidths", self.outside]
        return ["--levels", f"{devices},{servers}", "--bandwidths", f"{self.inside},{self.outside}"]

    def slowest_bytes_per_second(self, servers):
        text = self.inside if servers == 1 else self.outside
        return float(text[:-len("GB/s")]) * 1e9 if text.endswith("GB/s") else float(text[:-len("Gbit/s")]) * 1e9 / 8

    def of(self, count):
        """Options for `count` devices on as few servers as hold them."""
        return self.levels(max(1, count // self.in_server), min(count, self.in_server))


CLUSTERS = {
    "A": Cluster("4 V100 a server, PCIe, 10 Gbit/s", 4, "10GB/s", "10Gbit/s"),
    "B": Cluster("8 V100 a server, NVLink, 25 Gbit/s", 8, "100GB/s", "25Gbit/s"),
    "C": Cluster("1 Titan X a server, 40 Gbit/s", 1, "40Gbit/s", "40Gbit/s"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """Of PipeDream's Table 1: its configuration, and how many times data parallelism's pace an epoch has with it."""
    model: str
    profile: str  # file, without .txt; "": none is published
    cluster: str
    servers: int
    devices: int
    configuration: str
    epoch: float
    why: str


TABLE_1 = (
    Row("VGG-16", "vgg16", "A", 4, 4, "15-1", 5.28,
        "The published profile is of minibatches of 128; smaller ones exchange as much for fewer samples, which makes data parallelism slower. Our exchange is direct and sends 3 times the gradients through the link of a server, a ring once."),
    Row("VGG-16", "vgg16", "B", 2, 8, "15-1", 2.98,
        "Within a tenth; the direct exchange (4 times the gradients through the link of a server) and the large minibatch of the profile weigh against each other."),
    Row("ResNet-50", "resnet50", "A", 4, 4, "16", 1.0,
        "The paper's answer is data parallelism, so the ratio is 1 by definition. Ours would cut it: its exchange is direct and hides nothing behind the backward, so data parallelism is dearer than PyTorch's."),
    Row("ResNet-50", "resnet50", "B", 2, 8, "16", 1.0, "As on cluster A."),
    Row("AlexNet", "alexnet", "A", 4, 4, "15-1", 4.92,
        "AlexNet computes little, so all depends on how the gradients are exchanged: ours is direct, and sends 3 times the gradients through the link of a server, a ring once."),
    Row("AlexNet", "alexnet", "B", 2, 8, "15-1", 2.04,
        "The same, more so: 4 times the gradients through the link of a server."),
    Row("GNMT-16", "gnmt_large", "A", 1, 4, "straight", 1.46, ""),
    Row("GNMT-16", "gnmt_large", "A", 4, 4, "straight", 2.34, ""),
    Row("GNMT-16", "gnmt_large", "B", 2, 8, "straight", 3.14, ""),
    Row("GNMT-8", "gnmt", "A", 1, 4, "straight", 1.5,
        "Within a server all depends on what PCIe gives to an exchange among four; 10 GB/s for each device is taken here."),
    Row("GNMT-8", "gnmt", "A", 3, 4, "straight", 2.95,
        "By the published profile 775 MB are exchanged for 89 ms of compute, which over 10 Gbit/s is far above what the paper's 2.95 implies, even by a ring; PipeDream's own optimizer predicts such ratios too (18.8 for four devices at 10 Gbit/s)."),
    Row("GNMT-8", "gnmt", "B", 2, 8, "16", 1.0,
        "The paper's answer is data parallelism, so the ratio is 1 by definition; by the published profile its exchange takes many times the compute, and a pipeline is far ahead."),
    Row("AWD-LM", "", "A", 1, 4, "straight", 4.25, ""),
    Row("S2VT", "", "C", 4, 1, "2-1-1", 3.01, ""),
)

# Figure 1 and section 2: the part of the time that data parallelism waits for communication, on 32 devices, "up to".
STALLS = {"VGG-16": ("vgg16", 0.8), "GNMT-8": ("gnmt", 0.8), "ResNet-50": ("resnet50", 0.4), "AlexNet": ("alexnet", None)}
STALL_DEVICES = (2, 4, 8, 16, 32)

# Section 5.4: communication of the best plan that is not data parallel, for each sample, against data parallelism: at most this part of it.
COMMUNICATION = {"VGG-16": ("vgg16", 0.15), "ResNet-50": ("resnet50", None)}

# Section 5.2: the optimizer takes less than this. Its program's CPU seconds for 4x4 devices, measured on two cores of a shared machine.
OPTIMIZER_SECONDS = 8
ORIGINAL_CPU_SECONDS = {"alexnet": 0.12, "vgg16": 0.19, "squeezenet1_0": 1.04, "resnet50": 16.12, "resnext50": 17.10, "resnet101": 96.09, "gnmt": 0.86}

# DDLBench: Horovod, ResNet-50 on ImageNet, 4 nodes of 4 Titan RTX, 40 Gbit/s: times one device.
HOROVOD = {"devices": 16, "speed_up": 14.5}
# torchgpipe on 4 devices, ImageNet: (samples of a microbatch, microbatches): seconds an epoch.
TORCHGPIPE = {"ResNet-50": {(24, 12): 2840, (32, 12): 2966, (32, 20): 2375, (12, 28): 3840, (16, 30): 3191}}

# SDPipe, appendix, figure 9: sizes of groups of ResNet-50 with 8 pipelines of one stage, by window (P): least, quartiles, most.
GROUP_SIZES = {1: (8, 8, 8, 8, 8), 2: (3, 6, 8, 8, 8), 5: (2, 3, 4, 6, 8)}

# Of other papers, whose rows our own experiments run.
ELSEWHERE = (
    ("DynPipe, figure 13: heavy interference on one of two stages, VGG-16: pace against PipeDream's unchanged plan", "1.68 (0.345 s to 0.205 s an iteration)", "interference"),
    ("DynPipe, figure 9: hours to 80 % on CIFAR-10, VGG-16: PipeDream's against DynPipe's", "1.65 (1.414 h, 0.858 h)", "interference"),
    ("PipeTransformer: ViT-B/16 on ImageNet, hours of an epoch's training: without freezing against with", "2.83 (26.5 h, 9.35 h)", "freezing"),
    ("PipeTransformer: BERT-large on SQuAD 1.1", "2.10 (5.12 h, 2.43 h)", "freezing"),
    ("SDPipe: one pipeline 4 times as slow; the appendix states no speed-up", "-", "stragglers"),
)
