"""Figures of a run, from its metrics.jsonl and hogs.jsonl: nothing is left out, moved or smoothed but by the medians named here."""
import itertools
import json
import statistics

WINDOW = 8  # minibatches: replicas take turns, so those of a round end together


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def trace_of(folder):
    """When minibatch k and all before it had ended; and the seconds from k - 1 to k, at [k]; None at [0]."""
    elapsed = list(itertools.accumulate((line["elapsed_seconds"] for line in lines_of(folder / "metrics.jsonl") if "loss" in line), max))
    return elapsed, [None, *(b - a for a, b in zip(elapsed, elapsed[1:]))]


def pace(elapsed, first, end):
    """Median time of a minibatch in [first, end): of all WINDOW of them that follow each other."""
    window = min(WINDOW, end - first)
    return statistics.median((elapsed[k + window] - elapsed[k]) / window for k in range(first - 1, end - window))


def hogs_of(folder):
    """The first minibatch that ended with hogs there, and the first without."""
    events = {line["event"]: line for line in lines_of(folder / "hogs.jsonl")}
    return events["come"]["last_minibatch"] + 1, events["go"]["last_minibatch"] + 1, events["go"]["used"]


def of_run(folder, rank):
    """`rank` is the one that the hogs are beside. Times in seconds."""
    lines = lines_of(folder / "metrics.jsonl")
    elapsed, periods = trace_of(folder)
    come, go, used = hogs_of(folder)
    median = statistics.median
    changes = [{key: line["generation"].get(key) for key in
                ("first_minibatch", "plan", "reason", "moved_bytes", "drain_seconds", "move_seconds", "start_seconds")}
               for line in lines if "generation" in line and line["generation"]["first_minibatch"] > 0]
    for change in changes:
        first = change["first_minibatch"]
        # Of rank 0: from its last backward to its first forward.
        change["pause_seconds"] = change["move_seconds"] + change["start_seconds"]
        # Of the pipeline: what the losses before and behind the change lie further apart than others do.
        near = [seconds for seconds in periods[max(1, first - 20):first - 4]]
        change["gap_seconds"] = elapsed[min(first + 2, len(elapsed) - 1)] - elapsed[max(0, first - 3)] - 5 * median(near) if near else None
    found = next((line["speed"] for line in lines if "speed" in line and line["speed"]["rank"] == rank and line["speed"]["found"] >= come), None)
    detection = None
    if found:
        at = min(found["found"], len(elapsed) - 1)
        detection = {"minibatches": found["found"] - come, "seconds": elapsed[at] - elapsed[come - 1], "slowdown": found["slowdown"]}
    return {
        "hogs_came": come, "hogs_went": go, "hogs_cpu_share": used["cpu_seconds"] / used["seconds"] if used else 0,
        # Medians: quiet, the first third left out; disturbed, its second half; quiet again, its last half.
        "before_seconds": pace(elapsed, max(1, come // 3), come), "settled_seconds": pace(elapsed, (come + go) // 2, go),
        "after_seconds": pace(elapsed, (go + len(periods)) // 2, len(periods)),
        # All disturbed minibatches with whatever happened among them.
        "during_seconds": (elapsed[go - 1] - elapsed[come - 1]) / (go - come),
        "total_seconds": elapsed[-1], "detection": detection, "changes": changes,
        "changes_before": sum(change["first_minibatch"] < come for change in changes)}


def against_none(line, none):
    """How a run compares with the run without changes of the same case and repeat; empty without one."""
    if none is None:
        return {}
    slowdown = none["settled_seconds"] / none["before_seconds"]
    gain = none["settled_seconds"] / line["settled_seconds"]
    # Two balanced stages, one slowed by f: their work at the pace of both ranks together.
    ideal = (1 + slowdown) / 2
    # The machine is not as fast in one run as in the next: each by its own quiet pace.
    own = slowdown / (line["settled_seconds"] / line["before_seconds"])
    return {"slowdown": slowdown, "gain": gain, "ideal": ideal, "of_ideal": gain / ideal, "own_of_ideal": own / ideal, "during": none["during_seconds"] / line["during_seconds"],
            "net": none["total_seconds"] / line["total_seconds"]}
