"""results.md and loss.svg of the lines of results.jsonl."""
import pathlib
import statistics

import figures

COLOURS = {"all-reduce": "#7f7f7f", "partial-reduce": "#4e79a7"}
TITLES = {"even": "all alike", "slow": "pipeline 0 takes 4 times as long", "random": "10 % of operations take 10 times as long more", "both": "both"}


def spread(values, text="{:.2f}".format):
    """The median, and where there are several the smallest and the largest."""
    if not values:
        return "-"
    return text(values[0]) if len(values) == 1 else f"{text(statistics.median(values))} ({text(min(values))} .. {text(max(values))})"


def groups(lines, *keys):
    result = {}
    for line in lines:
        result.setdefault(tuple(line[key] for key in keys), []).append(line)
    return result


def sizes_of(part):
    total = {}
    for line in part:
        for size, count in line["group_sizes"].items():
            total[int(size)] = total.get(int(size), 0) + count
    everything = sum(total.values())
    return ", ".join(f"{size}: {100 * count / everything:.0f} %" for size, count in sorted(total.items())) or "-"


def rates(lines):
    text = ["| pipelines | who is slow | sync | minibatches/s | times all-reduce | simulated | groups of | longest window | waiting | minibatches by pipeline |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (pipelines, case, sync), part in groups(lines, "pipelines", "case", "sync").items():
        base = {line["repeat"]: line["minibatches_per_second"] for line in lines
                if (line["pipelines"], line["case"], line["sync"]) == (pipelines, case, "all-reduce")}
        ratios = [line["minibatches_per_second"] / base[line["repeat"]] for line in part if line["repeat"] in base]
        simulated = {line["sync"]: line["simulated_minibatches_per_second"] for line in lines if (line["pipelines"], line["case"]) == (pipelines, case)}
        windows = [line["longest_window_updates_per_pipeline"] for line in part if line["longest_window_updates_per_pipeline"]]
        text.append(f"| {pipelines} | {TITLES[case]} | `{part[0]['spec']}` | {spread([line['minibatches_per_second'] for line in part], '{:.1f}'.format)} | {spread(ratios)} "
                    f"| {spread([simulated[sync] / simulated['all-reduce']] if 'all-reduce' in simulated else [])} "
                    f"| {sizes_of(part)} | {max(windows) if windows else '-'} | {100 * statistics.median(line['sync_wait_fraction'] for line in part):.0f} % "
                    f"| {', '.join(map(str, part[0]['minibatches_by_pipeline']))} |")
    return text


def learned(lines):
    """Of each seed: the loss that all-reduce ends with, and when each got there."""
    rows = []
    for (seed,), part in groups(lines, "repeat").items():
        curves = {line["sync"]: figures.loss_curve(pathlib.Path(line["run"])) for line in part}
        if len(curves) < 2:
            continue
        target = curves["all-reduce"][-1][1]
        rows.append({"seed": seed + 1, "target": target, "seconds": {sync: figures.first_below(curve, target) for sync, curve in curves.items()},
                     "accuracy": {line["sync"]: line["accuracy"] for line in part}})
    return rows


def learned_table(rows):
    text = ["| seed | smoothed loss that all-reduce ends with | all-reduce, s | partial-reduce, s | of all-reduce's time | accuracy, all-reduce | partial-reduce |",
            "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        one, other = row["seconds"]["all-reduce"], row["seconds"]["partial-reduce"]
        part = f"{other:.1f} | {other / one:.2f}" if other else "never | -"
        text.append(f"| {row['seed']} | {row['target']:.4f} | {one:.1f} | {part} | {100 * row['accuracy']['all-reduce']:.2f} % | "
                    f"{100 * row['accuracy']['partial-reduce']:.2f} % |")
    reached = [row["seconds"]["partial-reduce"] / row["seconds"]["all-reduce"] for row in rows if row["seconds"]["partial-reduce"]]
    points = [100 * (row["accuracy"]["partial-reduce"] - row["accuracy"]["all-reduce"]) for row in rows]
    if rows:
        text += ["", f"Time to that loss, of all-reduce's: {spread(reached)}; accuracy against all-reduce's: {spread(points, '{:+.2f}'.format)} points."]
    return text


def curves(lines):
    left, width, height, top = 60, 800, 320, 30
    drawn = [(line["sync"], figures.loss_curve(pathlib.Path(line["run"]))[::20]) for line in lines]
    latest = max(seconds for _, curve in drawn for seconds, _ in curve)
    most = max(curve[0][1] for _, curve in drawn)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {top + height + 40}" font-family="sans-serif" font-size="11">'
             f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="16" font-size="13">Loss (mean of 100 minibatches) against seconds, every seed; '
             f'pipeline 0 of 2 takes 4 times as long</text>']
    for i in range(6):
        x, y = left + width * i / 5, top + height - height * i / 5
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle">{latest * i / 5:.0f} s</text>'
                     f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * i / 5:.2f}</text>'
                     f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>')
    for sync, curve in drawn:
        points = " ".join(f"{left + width * seconds / latest:.1f},{top + height - height * min(loss, most) / most:.1f}" for seconds, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[sync]}" stroke-width="1.2"/>')
    for place, (sync, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{left + width - 110}" y="{top + 16 + 14 * place}" fill="{colour}">{sync}</text>')
    return "".join(parts) + "</svg>\n"


def write(output, lines):
    measured = [line for line in lines if line["case"] != "learn"]
    learning = [line for line in lines if line["case"] == "learn"]
    text = ["# Stragglers", ""]
    if measured:
        text += ["N pipelines of two stages. Every forward and backward waits on purpose for " + " or ".join(f"{ms} ms" for (ms,) in groups(measured, "operation_ms"))
                 + ", which stands for compute; so many ranks share the cores. Simulated: times all-reduce, by the optimizer's `simulate --sync`. Longest window: updates of a pipeline, in the mean over all, at any stage, until the groups "
                 "had connected all. Waiting: for groups or for gradients' sums, of the training time. Of several repeats: median (least .. most).", ""]
        text += rates(measured) + [""]
    if learning:
        text += ["## Time to a loss", "", f"A small convolutional network on Fashion-MNIST, two pipelines of two stages, pipeline 0 takes 4 times as long, "
                 f"{learning[0]['minibatches']} epochs; losses are means of 100 minibatches.", ""]
        text += learned_table(learned(learning)) + ["", "![loss against time](loss.svg)", ""]
        (output / "loss.svg").write_text(curves(learning))
    (output / "results.md").write_text("\n".join(text))
