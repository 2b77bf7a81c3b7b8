"""What a run folder says of pipelines side by side."""
import collections
import json


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def groups_of(folder):
    """By stage, the groups in their order."""
    file = folder / "groups.jsonl"
    stages = collections.defaultdict(list)
    for line in lines_of(file) if file.exists() else []:
        if "group" in line:
            stages[line["stage"]].append(line["group"])
    return stages


def longest_window(groups, pipelines):
    """Of a stage: updates of all pipelines, at most, until the union of the groups has connected them; how often it did."""
    component, updates, longest, connected = list(range(pipelines)), 0, 0, 0
    for group in groups:
        updates += len(group)
        joined = {component[member] for member in group}
        component = [min(joined) if own in joined else own for own in component]
        if len(set(component)) == 1:
            longest, connected = max(longest, updates), connected + 1
            component, updates = list(range(pipelines)), 0
    return longest, connected


def of_run(folder, pipelines):
    summary = json.loads((folder / "summary.json").read_text())
    seconds = max(rank["times"]["trained_seconds"] for rank in summary["ranks"])
    stages = groups_of(folder)
    sizes = collections.Counter(len(group) for groups in stages.values() for group in groups)
    windows = [longest_window(groups, pipelines)[0] for groups in stages.values()]
    shares = {rank["replica"]: rank["times"]["minibatches"] for rank in summary["ranks"] if rank["stage"] == 0}
    waits = [rank["sync_wait_seconds"] / seconds for rank in summary["ranks"]]
    return {"seconds": seconds, "minibatches_per_second": summary["minibatches"] / seconds, "group_sizes": dict(sorted(sizes.items())),
            "longest_window_updates_per_pipeline": max(windows) / pipelines if windows else None,
            "minibatches_by_pipeline": [shares[pipeline] for pipeline in sorted(shares)], "sync_wait_fraction": sum(waits) / len(waits)}


def smoothed(losses, width):
    """Mean of the last `width` losses, from the first place that has so many on."""
    total, result = sum(losses[:width]), [sum(losses[:width]) / width]
    for i in range(width, len(losses)):
        total += losses[i] - losses[i - width]
        result.append(total / width)
    return result


def loss_curve(folder, width=100):
    """(elapsed seconds, smoothed loss), in the order of time."""
    lines = sorted((line["elapsed_seconds"], line["loss"]) for line in lines_of(folder / "metrics.jsonl") if "loss" in line)
    return list(zip([seconds for seconds, _ in lines][width - 1:], smoothed([loss for _, loss in lines], width)))


def first_below(curve, target):
    return next((seconds for seconds, loss in curve if loss <= target), None)


def accuracy(folder):
    return json.loads((folder / "summary.json").read_text())["evaluation"]["top1"]
