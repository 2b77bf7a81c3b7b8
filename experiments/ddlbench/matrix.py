"""What DDLBench compares: benchmarks (data, batch sizes, hyperparameters), models, frameworks."""
import dataclasses

MODELS = {"resnet18": "resnet18", "resnet50": "resnet50", "resnet152": "resnet152", "vgg11": "vgg11", "vgg16": "vgg16",
          "mobilenetv2": "mobilenet_v2"}
FURTHER_MODELS = {"resnet34": "resnet34", "resnet101": "resnet101", "vgg13": "vgg13", "vgg19": "vgg19"}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    data: str           # data set of Pipewright
    train: int          # images of an epoch
    model_options: str  # that make a model take its images
    batch: int          # samples a device computes at a time, DDLBench's
    microbatches: int   # of an update of the schedules that drain, DDLBench's chunks
    hyperparameters: tuple

    def model(self, name):
        spec = {**MODELS, **FURTHER_MODELS}[name]
        return f"{spec}:{self.model_options}" if self.model_options else spec


def sgd(rate, momentum, decay):
    return ("--learning-rate", rate, "--momentum", momentum, "--weight-decay", decay)


BENCHMARKS = {
    "mnist": Benchmark("mnist", 60_000, "small=yes,image=28,channels=1", 128, 24, sgd(0.01, 0.5, 0)),
    "cifar10": Benchmark("cifar10", 50_000, "small=yes", 64, 32, sgd(0.1, 0.9, 5e-4)),
    "imagenet": Benchmark("imagenet", 1_281_167, "", 32, 12, sgd(0.1, 0.9, 1e-4)),
    "highres": Benchmark("highres", 50_000, "image=512", 32, 12, sgd(0.1, 0.9, 1e-4)),
}

# The optimizer's options. A schedule that drains gets --microbatches, and an update of as many minibatches.
FRAMEWORKS = {
    "single": (),
    "dp": ("--strategy", "dp"),
    "gpipe": ("--strategy", "straight", "--schedule", "gpipe"),
    "1f1b-flush": ("--strategy", "straight", "--schedule", "1f1b-flush"),
    "pipedream": ("--strategy", "straight", "--schedule", "1f1b"),
    "hybrid": ("--strategy", "hybrid", "--schedule", "1f1b"),
    "zb-h1": ("--strategy", "straight", "--schedule", "zb-h1"),
}
# PyTorch's own, and the mode of peers.py.
PEERS = {"pytorch-eager": "eager", "pytorch-ddp": "ddp", "pytorch-gpipe": "gpipe", "pytorch-1f1b": "1f1b"}
DRAINS = ("gpipe", "1f1b-flush", "zb-h1", "pytorch-gpipe", "pytorch-1f1b")
