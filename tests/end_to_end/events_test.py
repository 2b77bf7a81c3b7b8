#!/usr/bin/env python3
"""The event files of `report --tensorboard`, read by others.

    events_test.py BIN_DIR own            a reader of its own, written from the formats
    events_test.py BIN_DIR tensorboard    TensorBoard's package
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

JOB = ["--model", "mlp:layers=2,width=16,image=8,channels=1", "--data", "synthetic-images:image=8,samples=64",
       "--evaluation-data", "synthetic-images:image=8,samples=32", "--batch-size", "8", "--epochs", "3"]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (length,) = struct.unpack_from("<Q", data)
        assert struct.unpack_from("<I", data, 8) == (masked(data[:8]),)
        record, data = data[12:12 + length], data[12 + length:]
        assert struct.unpack_from("<I", data) == (masked(record),)
        yield record
        data = data[4:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """A protobuf message as {number of the field: value}."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = varint(data, at)
            continue
        length = {1: 8, 5: 4}.get(key & 7)
        if length is None:
            length, at = varint(data, at)
        found[key >> 3] = data[at:at + length]
        at += length
    return found


def own_scalars(folder):
    (file,) = folder.iterdir()
    first, *others = records(file.read_bytes())
    assert fields(first)[3] == b"brain.Event:2"
    scalars = {}
    for record in others:
        event = fields(record)
        value = fields(fields(event[5])[1])
        point = struct.unpack("<d", event[1])[0], event.get(2, 0), struct.unpack("<f", value[2])[0]
        scalars.setdefault(value[1].decode(), []).append(point)
    return scalars


def tensorboard_scalars(folder):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        print(f"SKIPPED: this Python has no tensorboard ({error}); PIPEWRIGHT_PYTHON names a venv that has")
        sys.exit(0)
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(each.wall_time, each.step, each.value) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def main():
    programs, reader = pathlib.Path(sys.argv[1]), sys.argv[2]
    scalars_of = {"own": own_scalars, "tensorboard": tensorboard_scalars}[reader]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = [folder / "fast", folder / "slow"]
        for run, rate in zip(runs, ["0.1", "0.01"]):
            subprocess.run([programs / "pipewright-runtime", "train", *JOB, "--learning-rate", rate, "--output", run], check=True,
                           capture_output=True)
        subprocess.run([programs / "pipewright-runtime", "report", *runs, "--tensorboard", folder / "board"], check=True,
                       capture_output=True)
        assert sorted(path.name for path in (folder / "board").iterdir()) == ["fast", "slow"]
        for run in runs:
            scalars = scalars_of(folder / "board" / run.name)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            losses = [(line["minibatch"], line["loss"]) for line in lines if "minibatch" in line]
            evaluations = [line["evaluation"] for line in lines if "evaluation" in line]
            assert len(losses) == 24 and len(evaluations) == 3
            assert {"loss", "learning_rate", "samples_per_second", "evaluation/loss", "evaluation/top1"} <= set(scalars), set(scalars)
            assert [step for _, step, _ in scalars["loss"]] == [step for step, _ in losses]
            assert all(math.isclose(got, loss, rel_tol=1e-6) for (_, _, got), (_, loss) in zip(scalars["loss"], losses))
            assert [step for _, step, _ in scalars["evaluation/loss"]] == [8, 16, 24]
            assert all(math.isclose(got, each["loss"], rel_tol=1e-6)
                       for (_, _, got), each in zip(scalars["evaluation/loss"], evaluations))
            times = [time for time, _, _ in scalars["loss"]]
            assert times == sorted(times) and abs(times[-1] - (run / "metrics.jsonl").stat().st_mtime) < 60
    print(f"read by {reader}: {len(scalars)} curves a run")


if __name__ == "__main__":
    main()
