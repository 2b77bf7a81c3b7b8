"""What is trained: the models and their data, the optimizers, which of them goes with which weight rule, and the plans."""
import hashlib
import json
import pathlib

from experiment import Failed

RULES = ("flush", "stash", "vertical", "2bw", "paci", "predict")
NO_DECAY = "bias|ln_|bn"

# The rate in the middle of the search, and the other options. The rest is the programs' default.
OPTIMIZERS = {
    "sgd": (0.1, ["--momentum", 0.9]),
    "adamw": (0.002, ["--weight-decay", 0.1, "--no-decay", NO_DECAY]),
    "nadam": (0.001, ["--beta1", 0.99, "--weight-decay", 0.1, "--no-decay", NO_DECAY]),
    "muon": (0.002, ["--momentum", 0.95, "--nesterov", "--weight-decay", 0.1, "--no-decay", NO_DECAY]),
}
NO_MATRICES = {"gpt": ["--parameter-group", "wte|wpe|lm_head:matrix=no"], "resnet": ["--parameter-group", "fc:matrix=no"]}

CORRECTIONS = {"none": RULES, "error-feedback": ("2bw",), "dc": ("2bw",), "pipemare-t1": ("stash", "vertical")}  # with which rules they go
PREDICTED = ("sgd", "adamw")
SPLIT = ("flush", "2bw", "paci")  # a pipeline's update is of as many microbatches as it has stages; with the others of one minibatch
EVERYWHERE = ("flush", "2bw")     # what is computed does not depend on stages and microbatches: trained with one of each

TEXT = pathlib.Path("/usr/share")
HELD_WINDOWS = 512


def goes(rule, optimizer, correction):
    return rule in CORRECTIONS[correction] and (rule != "predict" or optimizer in PREDICTED)


class Gpt:
    """On the reference manual of CMake, which Debian's cmake-data carries: English in reStructuredText, 1,900 files."""
    kind, name, first_batch, updates = "gpt", "gpt", 16, 250
    tokens = 32

    def __init__(self, options):
        self.model = options.model or "gpt:layers=8,width=48,heads=4,tokens=32,vocabulary=256,dropout=0"
        self.data, self.held_data, self.digest = self.texts(options)

    def texts(self, options):
        """Files in an order that has nothing to do with their names, so that what is held back is of every kind."""
        if options.text:
            files, root = [options.text], options.text.parent
        else:
            roots = sorted(TEXT.glob("cmake-3*/Help"))
            if not roots:
                raise Failed(f"there is no {TEXT}/cmake-3*/Help: apt-get install cmake-data, or give --text FILE")
            root, files = roots[-1], sorted(roots[-1].rglob("*.rst"))
        files.sort(key=lambda file: hashlib.sha256(str(file.relative_to(root)).encode()).hexdigest())
        text = b"\n".join(file.read_bytes() for file in files)
        held = min(HELD_WINDOWS * self.tokens + 1, len(text) // 5)
        written = [options.output / "text" / name for name in ("train.txt", "held.txt")]
        written[0].parent.mkdir(parents=True, exist_ok=True)
        for file, part in zip(written, (text[:-held], text[-held:])):
            if not file.exists() or file.read_bytes() != part:
                file.write_bytes(part)
        return [f"text:file={file},tokens={self.tokens},held=0" for file in written] + [hashlib.sha256(text).hexdigest()[:16]]


class Resnet:
    """torchvision's ResNet-18 on the 28 x 28 grey pixels of Fashion-MNIST."""
    kind, name, first_batch, updates = "resnet", "resnet18", 32, 200
    digest = "fashion-mnist"

    def __init__(self, options):
        self.model = options.model or "resnet18:classes=10,channels=1,image=28"
        self.data = "fashion-mnist"
        self.held_data = "fashion-mnist:samples=2000"


MODELS = {"gpt": Gpt, "resnet": Resnet}


class Case:
    """One curve of the figures: trained at several rates with one seed, and at the best one with several."""

    def __init__(self, task, rule, optimizer, correction, stages):
        self.task, self.rule, self.optimizer, self.correction, self.stages = task, rule, optimizer, correction, stages

    @property
    def key(self):
        return {"model": self.task.name, "weights": self.rule, "optimizer": self.optimizer, "delay_correction": self.correction, "stages": self.stages}

    @property
    def name(self):
        return ".".join([self.task.name, self.rule, self.optimizer, self.correction, f"p{self.stages}"])

    def microbatches(self):
        """Minibatches of an update."""
        return self.stages if self.rule in SPLIT else 1

    def words(self):
        rate, more = OPTIMIZERS[self.optimizer]
        words = ["--optimizer", self.optimizer, *more]
        if self.optimizer == "muon":
            words += NO_MATRICES[self.task.kind]
        if self.correction != "none":
            words += ["--delay-correction", self.correction]
        if self.rule == "paci":
            words += ["--gradient-accumulation", self.stages]
        return words


def cases_of(task, rules, optimizers, corrections, stages, batch_size):
    """In the order in which they are run, and what cannot be, with the reason: first those of one stage, which stand for every number; the synchronous ones are what all others are compared with."""
    cases, left_out = [], []

    def add(rule, count):
        cases.extend(Case(task, rule, optimizer, correction, count) for correction in corrections for optimizer in optimizers if goes(rule, optimizer, correction))

    for rule in EVERYWHERE:
        if rule in rules:
            add(rule, 1)
    for count in stages:
        for rule in rules:
            if rule in EVERYWHERE or count == 1:
                continue
            if rule in SPLIT and batch_size % count:
                left_out.append((rule, count, f"{batch_size} samples are not {count} equal microbatches; give --batch-size"))
            else:
                add(rule, count)
    return cases, left_out


def cut(graph, stages):
    """The nodes of each stage: as many products with weights in one as in another or, where there are fewer than stages, as many nodes with weights. `graph`: its document."""
    nodes, weights = graph["nodes"], {parameter["name"] for parameter in graph["parameters"]}
    weighted = [i for i, node in enumerate(nodes) if weights & {value.get("tensor") for value in node["arguments"].values() if isinstance(value, dict)}]
    products = [i for i in weighted if nodes[i]["operator"] in ("aten::linear", "aten::conv2d")]
    places = products if stages <= len(products) else weighted
    if stages > len(places):
        raise Failed(f"{graph['name']} has {len(places)} nodes with weights, which are at most as many stages, not {stages}")
    begins = [0] + [places[len(places) * stage // stages] for stage in range(1, stages)] + [len(nodes)]
    return [[node["name"] for node in nodes[a:b]] for a, b in zip(begins, begins[1:])]


def plan_of(model, graph, rule, stages, microbatches):
    """One device a stage; as many minibatches in flight as 1F1B needs."""
    plan = {"schema": "pipewright.plan/1", "model": model, "strategy": "manual", "schedule": "1f1b-flush" if rule == "flush" else "1f1b", "weights": rule, "world_size": stages,
            "stages": [{"nodes": nodes, "ranks": [stage], "in_flight": stages - stage} for stage, nodes in enumerate(cut(graph, stages))]}
    if rule in ("flush", "2bw"):
        plan["microbatches"] = microbatches
    return json.dumps(plan, indent=1) + "\n"
