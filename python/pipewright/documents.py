"""The documents of the programs as dataclasses: docs/formats.md says what each key means, its unit and its range.

Fields are the documents' keys. A key that may be left out is None, or an empty tuple or dict, where it is. Reading is strict, as the
programs' is: a key that is missing, unknown or of another type raises Error with its place.
"""
from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from typing import Any, TypeVar

from pipewright.errors import Error

T = TypeVar("T", bound="Document")
JsonObject = dict[str, Any]


def _value(kind: Any, value: Any, where: str) -> Any:
    """`value` of a JSON document as the type `kind`."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        return _value(next(part for part in parts if part is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(parts[0], one, f"{where}[{k}]") for k, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _value(parts[1], one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(kind, type) and issubclass(kind, Document) and isinstance(value, dict):
        return kind.of(value, where)
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind is Any or (kind in (int, str, bool) and type(value) is kind):
        return value
    raise Error(f"{where}: got {json.dumps(value)[:60]}, expected {getattr(kind, '__name__', kind)}")


@dataclasses.dataclass(frozen=True)
class Document:
    """Base of all: read from a file or from parsed JSON."""

    @classmethod
    def of(cls: type[T], values: JsonObject, where: str = "document") -> T:
        """From parsed JSON; `where` names it in errors."""
        kinds = typing.get_type_hints(cls)
        names = {field.name: field for field in dataclasses.fields(cls)}
        schema = getattr(cls, "SCHEMA", None)
        if schema is not None and values.get("schema") != schema:
            raise Error(f"{where}: got schema {values.get('schema')!r}, expected {schema!r}", "Another version of Pipewright has written it?")
        given = {key: value for key, value in values.items() if key != "schema"}
        for key in given:
            if key not in names:
                raise Error(f"{where}: unknown key '{key}'")
        for name, field in names.items():
            if name not in given and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise Error(f"{where}: key '{name}' is missing")
        return cls(**{key: _value(kinds[key], value, f"{where}.{key}") for key, value in given.items()})

    @classmethod
    def read(cls: type[T], file: str | os.PathLike) -> T:
        """From a file. Error where it cannot be read."""
        try:
            with open(file, encoding="utf-8") as text:
                return cls.of(json.load(text), os.fspath(file))
        except (OSError, ValueError) as error:
            raise Error(f"{os.fspath(file)} cannot be read: {error}") from None


@dataclasses.dataclass(frozen=True)
class Exported(Document):
    """A model as `pipewright export` has written it."""
    file: str
    model: str  #: as it was named: "transformers:gpt2"
    type: str  #: class of the module
    parameters: int  #: numbers in all parameters
    operators: int
    file_bytes: int
    batch_size: int
    inputs: dict[str, str]  #: "int64 (8, 64)" by the names of the data's fields; dimension 0 is the batch
    gpus: int  #: that PyTorch sees on this machine
    evaluating: tuple[str, ...] = ()  #: modules that stay in evaluation mode
    config: JsonObject | None = None  #: of transformers, what from_pretrained reads beside the weights


@dataclasses.dataclass(frozen=True)
class Value(Document):
    """What a node makes, in a minibatch."""
    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class ProfiledNode(Document):
    """An operator of the model, and what one device needs for it and a minibatch."""
    name: str
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    spread: float  #: median absolute deviation over median
    saved_bytes: int  #: that live until the backward
    parameter_bytes: int
    trainable_parameter_bytes: int
    buffer_bytes: int
    parameters: tuple[str, ...]
    keeps: tuple[str, ...] | None = None
    workspace_bytes: int = 0
    forward_launch_seconds: float | None = None
    backward_launch_seconds: float | None = None
    forward_gap_seconds: float | None = None
    backward_gap_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class ProfiledModel(Document):
    """The model in one piece."""
    forward_seconds: float
    backward_seconds: float
    step_seconds: float
    update: dict[str, float] = dataclasses.field(default_factory=dict)
    crowd: dict[str, float] = dataclasses.field(default_factory=dict)
    forward_launch_seconds: float | None = None
    backward_launch_seconds: float | None = None
    allocated_bytes: int | None = None
    library_bytes: int | None = None
    input_bytes: int | None = None
    uploaded_bytes: int | None = None
    host_cores: int | None = None
    known_within: float | None = None  #: part of the sum of all nodes, confidence 95 %


@dataclasses.dataclass(frozen=True)
class Profile(Document):
    """What one device needs for each node, for one minibatch."""
    SCHEMA = "pipewright.profile/1"
    model: str
    graph_digest: str
    minibatch_samples: int
    device: str
    threads: int
    provenance: dict[str, str]
    input_seconds: float
    nodes: tuple[ProfiledNode, ...]
    whole: ProfiledModel
    combines: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Memory(Document):
    """Tensors of a rank by purpose, in bytes; `workspace_bytes` is predicted only, `other_bytes` measured only."""
    weights_bytes: int
    versions_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    messages_bytes: int
    workspace_bytes: int = 0
    other_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Stage(Document):
    """Part of the model, and who runs it."""
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    in_flight: int  #: most minibatches of a rank between forward and backward
    layers: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    recompute: bool = False
    recompute_ratio: float | None = None
    frozen: bool = False


@dataclasses.dataclass(frozen=True)
class PredictedStage(Document):
    """What a stage costs a rank of it, for one minibatch."""
    compute_seconds: float
    send_seconds: float
    receive_seconds: float
    gradient_sync_seconds: float
    step_seconds: float
    memory: Memory


@dataclasses.dataclass(frozen=True)
class Prediction(Document):
    """What the optimizer expects of a plan."""
    minibatch_seconds: float
    bottleneck: str
    lower_bound_seconds: float
    samples_per_second: float  #: 0: the profile does not know its minibatch
    stages: tuple[PredictedStage, ...]
    transfers: str = "overlapped"
    shared_cores: int | None = None
    plan_digest: str | None = None  #: of the plan that it is of: of one that was changed it is another's


@dataclasses.dataclass(frozen=True)
class Plan(Document):
    """Who runs what."""
    SCHEMA = "pipewright.plan/1"
    model: str
    strategy: str
    schedule: str
    weights: str
    world_size: int
    stages: tuple[Stage, ...]
    graph_digest: str | None = None
    profile_digest: str | None = None
    topology_digest: str | None = None
    device_passes: str | None = None
    microbatches: int = 1
    order: tuple[str, ...] = ()
    frozen_layers: int = 0
    tied_parameters: tuple[JsonObject, ...] = ()
    predicted: Prediction | None = None


@dataclasses.dataclass(frozen=True)
class Contender(Document):
    """A way to train the model on the devices; `why_not` says why there is none, and all else is None then."""
    strategy: str
    why_not: str | None = None
    shape: str | None = None  #: "2-1": ranks of each stage
    kind: str | None = None
    world_size: int | None = None
    recompute: tuple[bool, ...] = ()
    minibatch_seconds: float | None = None
    minibatches_per_update: int | None = None
    staleness: int | None = None  #: updates by which weights are old at most
    speed_up: float | None = None  #: over one device
    memory_bytes: int | None = None  #: of the fullest device
    bottleneck: str | None = None
    plan: str | None = None  #: file


@dataclasses.dataclass(frozen=True)
class Comparison(Document):
    """What `pipewright-optimizer compare --json` prints."""
    model: str
    strategies: tuple[Contender, ...]
    best: str  #: strategy of the contender that is advised
    kind: str
    turns: tuple[JsonObject, ...]  #: bandwidths at which another kind of plan is advised
    advice: str  #: with its reason
    tied_parameters: str | None = None
    syncs: Any = None  #: with --sync

    def contender(self, strategy: str | None = None) -> Contender:
        """By its strategy, default the best. Error where there is no plan of it."""
        name = self.best if strategy is None else strategy
        for one in self.strategies:
            if one.strategy == name and one.plan is not None:
                return one
        why_not = next((one.why_not for one in self.strategies if one.strategy == name), None)
        raise Error(f"no plan of strategy '{name}'" + (f": {why_not}" if why_not else ""),
                    "There are: " + ", ".join(one.strategy for one in self.strategies if one.plan is not None) + ".")


@dataclasses.dataclass(frozen=True)
class Evaluation(Document):
    """Of a run's last evaluation; fractions of 1, None where the model or the data has none."""
    loss: float | None
    top1: float | None
    samples: int
    top5: float | None = None
    exact_match: float | None = None
    f1: float | None = None


@dataclasses.dataclass(frozen=True)
class RankSummary(Document):
    """What a rank did."""
    rank: int
    stage: int
    replica: int
    host: str
    busy_fraction: float
    receive_wait_seconds: float
    sync_wait_seconds: float
    peak_memory_bytes: int
    predicted_memory_bytes: int  #: 0: the plan does not say
    sent_bytes: int
    peak_in_flight: int
    peak_weight_versions: int
    updates: int
    largest_spread: float = 0.0
    memory: Memory | None = None
    predicted_memory: Memory | None = None
    times: dict[str, float] = dataclasses.field(default_factory=dict)
    device: str | None = None
    cuda_graphs: str | None = None
    cache: JsonObject | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_resident_bytes: int = 0
    cached_bytes: int = 0
    weights_digest: str | None = None


@dataclasses.dataclass(frozen=True)
class Summary(Document):
    """What a run did."""
    SCHEMA = "pipewright.summary/2"
    status: str  #: "done", "interrupted", "failed"
    world_size: int
    strategy: str
    schedule: str
    weights: str
    minibatches: int
    samples: int
    cores: int
    wall_seconds: float
    minibatch_seconds: float  #: steady state, median
    samples_per_second: float
    predicted_minibatch_seconds: float  #: 0: the plan does not say
    train_loss: float | None  #: mean of the last epoch; None: not a number
    ranks: tuple[RankSummary, ...]
    first_minibatch: int = 0  #: those before it were trained by the run that this one goes on from
    minibatch_flops: float = 0.0
    flops_per_second: float = 0.0
    evaluation: Evaluation | None = None
    generations: tuple[JsonObject, ...] = ()
    recoveries: tuple[JsonObject, ...] = ()
    epochs: tuple[JsonObject, ...] = ()
    sync: JsonObject | None = None
