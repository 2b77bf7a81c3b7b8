"""What a run folder says of pipelines side by side."""
import json


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def of_run(folder, pipelines):
    summary = json.loads((folder / "summary.json").read_text())
    seconds = max(rank["times"]["trained_seconds"] for rank in summary["ranks"])
    sync = summary.get("sync", {})
    shares = {rank["replica"]: rank["times"]["minibatches"] for rank in summary["ranks"] if rank["stage"] == 0}
    waits = [rank["sync_wait_seconds"] / seconds for rank in summary["ranks"]]
    return {"seconds": seconds, "minibatches_per_second": summary["minibatches"] / seconds,
            "group_sizes": {size: count for size, count in enumerate(sync.get("group_sizes", []), 1) if count}, "columns": sync.get("columns", 0),
            "longest_window_updates_per_pipeline": sync.get("longest_window_updates") or None,
            "minibatches_by_pipeline": [shares[pipeline] for pipeline in sorted(shares)], "sync_wait_fraction": sum(waits) / len(waits),
            "largest_spread": max(rank.get("largest_spread", 0) for rank in summary["ranks"])}


def smoothed(losses, width):
    """Mean of the last `width` losses, from the first place that has so many on."""
    total, result = sum(losses[:width]), [sum(losses[:width]) / width]
    for i in range(width, len(losses)):
        total += losses[i] - losses[i - width]
        result.append(total / width)
    return result


def loss_curve(folder, width=200):
    """(elapsed seconds, smoothed loss), in the order of time."""
    lines = sorted((line["elapsed_seconds"], line["loss"]) for line in lines_of(folder / "metrics.jsonl") if "loss" in line)
    return list(zip([seconds for seconds, _ in lines][width - 1:], smoothed([loss for _, loss in lines], width)))


def first_below(curve, target):
    return next((seconds for seconds, loss in curve if loss <= target), None)


def accuracies(folder):
    """After each epoch."""
    return [line["evaluation"]["top1"] for line in lines_of(folder / "metrics.jsonl") if "evaluation" in line]
