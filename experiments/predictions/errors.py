"""How far a run is from what its plan said, and how far all of them are."""
import itertools
import json
import statistics

from pages import markdown_table

COLUMNS = ("model", "link", "plan", "stages", "predicted, ms", "measured, ms", "error", "by the first profile", "computing, measured / predicted", "memory, predicted / measured")
NEAR = 0.03  # plans that are nearer than this may come in any order


def predicted_computed(plan, number):
    """Seconds that a rank of the stage computes for each of its own minibatches."""
    replicas, expected = len(plan["stages"][number]["ranks"]), plan["predicted"]["stages"][number]
    round_length = plan["microbatches"] if plan["weights"] in ("flush", "2bw") else replicas
    return expected["compute_seconds"] + expected["step_seconds"] * replicas / round_length


def of_run(folder):
    """From plan.json and summary.json. Computing: forward, backward and update of each rank; memory: each rank's peak."""
    plan, summary = json.loads((folder / "plan.json").read_text()), json.loads((folder / "summary.json").read_text())
    ranks = []
    for rank in summary["ranks"]:
        times = rank["times"]
        ranks.append({"rank": rank["rank"], "stage": rank["stage"],
                      "computed_seconds": (times["busy_seconds"] - times["load_wait_seconds"]) / times["minibatches"],
                      "predicted_computed_seconds": predicted_computed(plan, rank["stage"]),
                      "receive_wait_seconds": rank["receive_wait_seconds"] / times["minibatches"], "sync_wait_seconds": rank["sync_wait_seconds"] / times["minibatches"],
                      "cpu_seconds": times["cpu_seconds"] / times["minibatches"],
                      "peak_memory_bytes": rank["peak_memory_bytes"], "predicted_memory_bytes": rank["predicted_memory_bytes"],
                      "memory": rank["memory"], "predicted_memory": rank["predicted_memory"]})
    return {"shape": "-".join(str(len(stage["ranks"])) for stage in plan["stages"]), "minibatches": summary["minibatches"],
            "predicted_seconds": plan["predicted"]["minibatch_seconds"], "measured_seconds": summary["minibatch_seconds"], "ranks": ranks, "run": str(folder)}


def median_of(runs):
    """The run whose time is in the middle, and all times in the order of the rounds."""
    return {**sorted(runs, key=lambda run: run["measured_seconds"])[len(runs) // 2], "all_measured_seconds": [run["measured_seconds"] for run in runs]}


def priced_by(line, plan):
    """With the prediction of `plan` in place of the run's own, which becomes `planned_seconds`."""
    ranks = [{**rank, "predicted_computed_seconds": predicted_computed(plan, rank["stage"])} for rank in line["ranks"]]
    return {**line, "planned_seconds": line["predicted_seconds"], "predicted_seconds": plan["predicted"]["minibatch_seconds"], "ranks": ranks}


def error_of(line):
    """Above 0: it takes longer than predicted."""
    return line["measured_seconds"] / line["predicted_seconds"] - 1


def by_first_profile(line):
    """The line with what its plan said before anything ran."""
    return {**line, "predicted_seconds": line["planned_seconds"]}


def memory_ratios(line):
    return [rank["predicted_memory_bytes"] / rank["peak_memory_bytes"] for rank in line["ranks"]]


def sentence(line):
    memory = ", ".join(f"{ratio:.2f}" for ratio in memory_ratios(line))
    return f"{1000 * line['measured_seconds']:.3g} ms, predicted {1000 * line['predicted_seconds']:.3g} ms ({100 * error_of(line):+.1f} %); memory predicted/measured {memory}"


def cells(line):
    if line["status"] != "done":
        return [line["model"], line["link"], line["plan"], "-", "-", f"{line['status']}: {line['reason']}", "-", "-", "-", "-"]
    computing = [rank["computed_seconds"] / rank["predicted_computed_seconds"] for rank in line["ranks"]]
    return [line["model"], line["link"], line["plan"], line["shape"], f"{1000 * line['predicted_seconds']:.3g}", f"{1000 * line['measured_seconds']:.3g}",
            f"{100 * error_of(line):+.1f} %", f"{100 * error_of(by_first_profile(line)):+.1f} %", ", ".join(f"{ratio:.2f}" for ratio in computing), ", ".join(f"{ratio:.2f}" for ratio in memory_ratios(line))]


def questions(done):
    """The plans of a model over one link; one device belongs to every link."""
    alone = {line["model"]: line for line in done if line["plan"] == "one device"}
    groups = {}
    for line in done:
        if line["plan"] != "one device":
            groups.setdefault((line["model"], line["link"]), []).append(line)
    return [[*plans, *([alone[model]] if model in alone else [])] for (model, _), plans in groups.items()]


def ranking(done):
    """(pairs in the right order, pairs that are not near, questions whose fastest plan by prediction is within NEAR of the fastest measured, questions)."""
    right = pairs = picked = 0
    groups = [plans for plans in questions(done) if len(plans) > 1]
    for plans in groups:
        for a, b in itertools.combinations(plans, 2):
            slower, faster = max(a["measured_seconds"], b["measured_seconds"]), min(a["measured_seconds"], b["measured_seconds"])
            if slower < (1 + NEAR) * faster:
                continue
            pairs += 1
            right += (a["measured_seconds"] < b["measured_seconds"]) == (a["predicted_seconds"] < b["predicted_seconds"])
        choice = min(plans, key=lambda line: line["predicted_seconds"])
        picked += choice["measured_seconds"] <= (1 + NEAR) * min(line["measured_seconds"] for line in plans)
    return right, pairs, picked, len(groups)


def summary_of(done):
    """A paragraph, and tables by plan, link and model."""
    errors = [error_of(line) for line in done]
    worst = max(errors, key=abs)
    memory = [ratio for line in done for ratio in memory_ratios(line)]
    right, pairs, picked, groups = ranking(done)
    text = [f"{len(done)} runs: mean |error| {100 * statistics.fmean(map(abs, errors)):.1f} %, worst {100 * worst:+.1f} %, mean {100 * statistics.fmean(errors):+.1f} %. "
            f"Plans of a model on a link that differ by more than {100 * NEAR:.0f} %: {right} of {pairs} pairs in the right order"
            f"{f', tau {2 * right / pairs - 1:.2f}' if pairs else ''}; the plan predicted fastest is, or is within {100 * NEAR:.0f} %: {picked} of {groups}. "
            f"Memory of a rank, predicted over measured: {min(memory):.2f} .. {max(memory):.2f}, {sum(ratio < 0.99 for ratio in memory)} of {len(memory)} below 0.99, "
            f"{sum(abs(ratio - 1) <= 0.05 for ratio in memory)} within 5 %.", ""]
    for column in ("plan", "link", "model"):
        rows = []
        for name in dict.fromkeys(line[column] for line in done):
            part = [error_of(line) for line in done if line[column] == name]
            rows.append([name, str(len(part)), f"{100 * statistics.fmean(part):+.1f} %", f"{100 * statistics.fmean(map(abs, part)):.1f} %", f"{100 * max(part, key=abs):+.1f} %"])
        text += [*markdown_table((column, "runs", "mean", "mean |error|", "worst"), rows), ""]
    return text


def markdown(lines):
    done = [line for line in lines if line["status"] == "done"]
    text = ["# Predictions", "", "Two ranks on a core each, 2-1 and 1-2 three on both. Error: how much longer a minibatch takes than predicted. Computing and memory: of each rank.", ""]
    if done:
        text += summary_of(done)
    if any(line["planned_seconds"] != line["predicted_seconds"] for line in done):  # several rounds
        text += ["By the first round's profile alone, as the plans themselves say:", ""]
        text += summary_of([by_first_profile(line) for line in done])
    text += markdown_table(COLUMNS, [cells(line) for line in lines])
    return "\n".join(text) + "\n"
