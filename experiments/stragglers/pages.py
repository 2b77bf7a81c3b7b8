"""results.md, rates.svg and loss.svg of the lines of results.jsonl."""
import pathlib
import statistics

import figures

COLOURS = {"all-reduce": "#7f7f7f", "partial-reduce": "#4e79a7", "whole-pipelines": "#a0cbe8", "turns": "#9c755f", "lockstep": "#b07aa1", "adpsgd": "#59a14f",
           "hetpipe": "#f28e2b", "none": "#e15759"}
TITLES = {"even": "nobody", "slow2": "pipeline 0, 2 times as long", "slow": "pipeline 0, 4 times as long", "slow9": "pipeline 0, 9 times as long",
          "random": "10 % of operations, 10 times as long more", "both": "pipeline 0, 4 times, and 10 % of operations", "trace": "as recorded"}


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


def ratios_of(lines, part, key):
    """Of each repeat: times all-reduce of the same layout, case and repeat."""
    base = {line["repeat"]: line[key] for line in lines
            if (line["layout"], line["case"], line["sync"]) == (part[0]["layout"], part[0]["case"], "all-reduce")}
    return [line[key] / base[line["repeat"]] for line in part if line["repeat"] in base]


def rates(lines):
    text = ["| layout | who is slow | sync | minibatches/s | times all-reduce | simulated | groups of | longest window | waiting | spread | minibatches by pipeline |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (layout, case, sync), part in groups(lines, "layout", "case", "sync").items():
        windows = [line["longest_window_updates_per_pipeline"] for line in part if line["longest_window_updates_per_pipeline"]]
        text.append(f"| {layout} | {TITLES[case]} | `{part[0]['spec']}` | {spread([line['minibatches_per_second'] for line in part], '{:.1f}'.format)} "
                    f"| {spread(ratios_of(lines, part, 'minibatches_per_second'))} | {spread(ratios_of(lines, part, 'simulated_minibatches_per_second'))} "
                    f"| {sizes_of(part)} | {max(windows) if windows else '-'} | {100 * statistics.median(line['sync_wait_fraction'] for line in part):.0f} % "
                    f"| {statistics.median(line['largest_spread'] for line in part):.2g} | {', '.join(map(str, part[0]['minibatches_by_pipeline']))} |")
    return text


def bars(lines):
    """Times all-reduce, a row of bars for each layout and case."""
    cases = {}
    for (layout, case, sync), part in groups(lines, "layout", "case", "sync").items():
        ratios = ratios_of(lines, part, "minibatches_per_second")
        if ratios:
            cases.setdefault((layout, case), {})[sync] = ratios
    most = max((max(ratios) for rows in cases.values() for ratios in rows.values()), default=1)
    left, width, line, y = 300, 560, 14, 40
    parts = []
    for (layout, case), rows in cases.items():
        parts.append(f'<text x="10" y="{y + 11}">{layout}, slow: {TITLES[case]}</text>')
        for sync, ratios in rows.items():
            middle = left + width * statistics.median(ratios) / most
            parts.append(f'<rect x="{left}" y="{y}" width="{middle - left:.1f}" height="{line - 3}" fill="{COLOURS[sync]}"/>'
                         f'<line x1="{left + width * min(ratios) / most:.1f}" x2="{left + width * max(ratios) / most:.1f}" y1="{y + 5.5}" y2="{y + 5.5}" stroke="black"/>'
                         f'<text x="{left + width * max(ratios) / most + 6:.1f}" y="{y + 10}">{statistics.median(ratios):.2f} {sync}</text>')
            y += line
        y += 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 140} {y + 10}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" '
            f'fill="white"/><text x="10" y="20" font-size="13">Minibatches per second as times those of all-reduce (median; line: least to most)</text>' + "".join(parts) + "</svg>\n")


def learned(lines):
    """Of each layout and seed: the loss that all-reduce ends with, and when each got there."""
    rows = []
    for (layout, seed), part in groups(lines, "layout", "repeat").items():
        curves = {line["sync"]: figures.loss_curve(pathlib.Path(line["run"])) for line in part}
        if "all-reduce" not in curves:
            continue
        base = next(line for line in part if line["sync"] == "all-reduce")
        target, one = curves["all-reduce"][-1][1], curves["all-reduce"][-1][0]
        for line in part:
            if line is base:
                continue
            there = figures.first_below(curves[line["sync"]], target)
            epochs = len(base["accuracies"])
            rows.append({"layout": layout, "sync": line["sync"], "seed": seed + 1, "target": target, "base_seconds": one, "seconds": there,
                         "rate": line["minibatches_per_second"] / base["minibatches_per_second"], "base_accuracy": base["accuracies"][-1],
                         "accuracy": line["accuracies"][epochs - 1], "last_accuracy": line["accuracies"][-1]})
    return rows


def learned_table(rows):
    text = ["| layout | sync | seed | all-reduce's last loss | it took | got there after | of all-reduce's time | minibatches/s, of all-reduce's | accuracy, all-reduce | after as many epochs | at the end |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        part = f"{row['seconds']:.1f} s | {row['seconds'] / row['base_seconds']:.2f}" if row["seconds"] else "never | -"
        text.append(f"| {row['layout']} | {row['sync']} | {row['seed']} | {row['target']:.4f} | {row['base_seconds']:.1f} s | {part} | {row['rate']:.2f} "
                    f"| {100 * row['base_accuracy']:.2f} % | {100 * row['accuracy']:.2f} % | {100 * row['last_accuracy']:.2f} % |")
    text.append("")
    for (layout, sync), part in groups(rows, "layout", "sync").items():
        reached = [row["seconds"] / row["base_seconds"] for row in part if row["seconds"]]
        points = [100 * (row["accuracy"] - row["base_accuracy"]) for row in part]
        last = [100 * (row["last_accuracy"] - row["base_accuracy"]) for row in part]
        text.append(f"{layout}, {sync}: {len(reached)} of {len(part)} got to that loss, in {spread(reached)} of all-reduce's time; accuracy against all-reduce's after as many epochs "
                    f"{spread(points, '{:+.2f}'.format)} points, at the end {spread(last, '{:+.2f}'.format)}.\n")
    return text


def curves(lines):
    left, width, height, top = 60, 800, 320, 30
    drawn = [(line["sync"], figures.loss_curve(pathlib.Path(line["run"]))[::20]) for line in lines]
    latest = max(seconds for _, curve in drawn for seconds, _ in curve)
    most = max(curve[0][1] for _, curve in drawn)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {top + height + 40}" font-family="sans-serif" font-size="11">'
             f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="16" font-size="13">Loss (mean of 200 minibatches) against seconds, every seed; '
             f'pipeline 0 takes 4 times as long</text>']
    for i in range(6):
        x, y = left + width * i / 5, top + height - height * i / 5
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle">{latest * i / 5:.0f} s</text>'
                     f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * i / 5:.2f}</text>'
                     f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>')
    for sync, curve in drawn:
        points = " ".join(f"{left + width * seconds / latest:.1f},{top + height - height * min(loss, most) / most:.1f}" for seconds, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[sync]}" stroke-width="1.2"/>')
    for place, sync in enumerate(dict(drawn)):
        parts.append(f'<text x="{left + width - 110}" y="{top + 16 + 14 * place}" fill="{COLOURS[sync]}">{sync}</text>')
    return "".join(parts) + "</svg>\n"


def write(output, lines):
    measured = [line for line in lines if line["case"] != "learn"]
    learning = [line for line in lines if line["case"] == "learn"]
    text = ["# Stragglers", ""]
    if measured:
        text += ["Layouts are pipelines x stages. Every forward and backward waits on purpose for " + " or ".join(f"{ms} ms" for (ms,) in groups(measured, "operation_ms"))
                 + ", which stands for compute; so many ranks share the cores. Simulated: times all-reduce, by the optimizer's `simulate --sync`. Longest window: updates of a pipeline, in the mean over all, at any stage, until the groups "
                 "had connected all. Waiting: for groups or for gradients' sums, of the training time. Spread: how far a rank's weights were from the mean of its stage's at the end, as a part of it. "
                 "Of several repeats: median (least .. most).", ""]
        text += rates(measured) + ["", "![times all-reduce](rates.svg)", ""]
        (output / "rates.svg").write_text(bars(measured))
    if learning:
        text += ["## Time to a loss", "", f"A small convolutional network on Fashion-MNIST, pipeline 0 takes 4 times as long; all-reduce trains {learning[0]['minibatches']} epochs, the others twice as many; "
                 "losses are means of 200 minibatches.", ""]
        text += learned_table(learned(learning)) + ["", "![loss against time](loss.svg)", ""]
        (output / "loss.svg").write_text(curves(learning))
    (output / "results.md").write_text("\n".join(text))
