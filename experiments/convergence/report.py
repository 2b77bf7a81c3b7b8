"""convergence.MODEL.json, results.md and drawings of the cases that are there."""
import html
import json
import math
import re
import statistics

from cases import CORRECTIONS, OPTIMIZERS, RULES
from pages import COLOURS, markdown_table, number, svg

SCHEMA = "pipewright.convergence/1"
CASE = ("model", "weights", "optimizer", "delay_correction", "stages")
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6}
SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def place_of(line):
    """Tables do not depend on which run has ended first."""
    return line["model"], list(OPTIMIZERS).index(line.get("optimizer", "sgd")), line["stages"], RULES.index(line["weights"]), list(CORRECTIONS).index(line.get("delay_correction", "none"))


def mean(values):
    """None where one is: a seed that diverged, or whose loss is worth no number of samples that is known."""
    return None if not values or any(value is None for value in values) else statistics.fmean(values)


def losses_of(case):
    """Held-out loss by seed."""
    return dict(map(tuple, case["losses"]))


def reference_of(cases, case):
    """The synchronous run with the same optimizer."""
    for other in cases:
        if other["weights"] == "flush" and all(other[key] == case[key] for key in ("model", "optimizer", "batch_size", "updates")):
            return other
    return None


def worth(points, loss):
    """The part of its samples after which a synchronous run, its schedule shortened to them, ends with `loss`. `points`: (part, its loss); between two the logarithm of the part is linear. The greatest
    part there is for a loss below all of them, None for one above."""
    points = sorted(points, reverse=True)
    if loss is None or any(value is None for _, value in points):
        return None
    if loss <= points[0][1]:
        return points[0][0]
    for (more, low), (fewer, high) in zip(points, points[1:]):
        if low <= loss <= high:
            share = (loss - low) / (high - low) if high > low else 0
            return math.exp(math.log(more) + share * (math.log(fewer) - math.log(more)))
    return None


def ratios_of(case, reference):
    """By seed: the samples that the case takes over those with which the synchronous run of that seed ends with the same loss."""
    found = []
    for seed, loss in case["losses"]:
        points = [(1, losses_of(reference).get(seed))] + [(float(part), dict(map(tuple, losses)).get(seed)) for part, losses in reference["budgets"]]
        part = worth(points, loss)
        found.append(None if part is None else 1 / part)
    return found


def gaps_of(case, reference):
    """Loss less that of the synchronous run of the same seed, which begins with the same weights and sees the same samples."""
    there = losses_of(reference)
    return [None if loss is None or there.get(seed) is None else loss - there[seed] for seed, loss in case["losses"]]


def rounded(value, digits=5):
    return None if value is None else float(f"{value:.{digits}g}")


def rows_of(cases, stages):
    """What the documents for the planner have. A case of one stage stands for every number in `stages`, as it computes the same with any; one stage alone is synchronous with every rule."""
    rows = []
    for case in cases:
        reference = reference_of(cases, case)
        losses = [loss for _, loss in case["losses"]]
        flush = case["weights"] == "flush"
        row = {**{key: case[key] for key in CASE}, "seeds": len(losses), "rate": case["rate"], "final_loss": rounded(mean(losses)),
               "final_loss_spread": None if mean(losses) is None else rounded(max(losses) - min(losses), 3),
               "samples_ratio": 1.0 if flush else rounded(mean(ratios_of(case, reference)), 4) if reference else None}
        rows += [{**row, "stages": count} for count in sorted({*stages, *([1] if flush else [])})] if case["stages"] == 1 else [row]
    return rows


def figures_of(text):
    """Of what `simulate` prints: seconds from one minibatch to the next, and the peak memory of the device that has most."""
    period, unit = re.search(r"in the long run ([\d.]+) (s|ms|us) per minibatch", text).groups()
    table = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    heads = next(row for row in table if row[0] == "rank")
    peaks = [row[heads.index("peak memory")] for row in table if len(row) == len(heads) and row[0].isdigit()]
    return float(period) * UNITS[unit], max(peaks, key=lambda peak: float(peak.split()[0]) * SIZES[peak.split()[1]])


def drawing(title, x_label, series):
    """Losses over a logarithmic axis. `series`: name -> [(x, [a value for each seed])]: a line through the means and a band from the least to the greatest; a bar where there is one point."""
    left, top, width, height = 64, 34, 540, 300
    kept = {name: sorted((x, values) for x, values in points if values and None not in values) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return None
    xs = sorted({x for points in kept.values() for x, _ in points})
    ys = [y for points in kept.values() for _, values in points for y in values]
    low, high = math.log(xs[0]), math.log(xs[-1] if xs[-1] > xs[0] else 2 * xs[0])
    least, most = min(ys), max(max(ys), min(ys) + 1e-6)

    def place(x, y):
        return left + width * (math.log(x) - low) / (high - low), top + height * (most - y) / (most - least)

    parts = [f'<text x="8" y="18" font-size="14">{html.escape(title)}</text>']
    for i in range(6):
        y, x = least + (most - least) * i / 5, math.exp(low + (high - low) * i / 5)
        (across, down) = place(x, y)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{down:.1f}" y2="{down:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{y:.2f}</text>'
                     f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{top}" y2="{top + height}" stroke="#eee"/><text x="{across:.1f}" y="{top + height + 16}" text-anchor="middle">{number(x)}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{html.escape(x_label)}</text>')
    for i, (name, points) in enumerate(kept.items()):
        colour = COLOURS[i % len(COLOURS)]
        dashed = ' stroke-dasharray="5 4"' if i >= len(COLOURS) else ""
        upper, lower = ([place(x, pick(values)) for x, values in points] for pick in (max, min))
        band = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower[::-1])
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, statistics.fmean(values)) for x, values in points))
        if len(points) > 1:
            parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.18"/><polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
        for (x, up), (_, down), (_, values) in zip(upper, lower, points):
            middle = place(1, statistics.fmean(values))[1]
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up:.1f}" y2="{down:.1f}" stroke="{colour}" stroke-width="2"/><circle cx="{x:.1f}" cy="{middle:.1f}" r="3.5" fill="{colour}"/>')
        parts.append(f'<rect x="{left + width + 14}" y="{top + 18 * i}" width="11" height="11" fill="{colour}"/><text x="{left + width + 30}" y="{top + 18 * i + 10}">{html.escape(name)}</text>')
    return svg(left + width + 240, max(top + height + 44, top + 18 * len(kept) + 10), parts)


def label(case):
    """Without its optimizer and model."""
    if case["weights"] == "flush":
        return "synchronous"
    correction = "" if case["delay_correction"] == "none" else f" + {case['delay_correction']}"
    return f"{case['weights']}{correction}"


def signed(value):
    return "-" if value is None else f"{value:+.3f}"


def cells(case, cases, times):
    reference = reference_of(cases, case)
    losses = [loss for _, loss in case["losses"]]
    gaps = gaps_of(case, reference) if reference else [None]
    ratios = ratios_of(case, reference) if reference else [None]
    ratio = 1.0 if case["weights"] == "flush" else mean(ratios)
    there = None not in losses
    spread = f" ({min(losses):.3f} .. {max(losses):.3f})" if there and len(losses) > 1 else ""
    gap = "-" if case["weights"] == "flush" or mean(gaps) is None else f"{signed(mean(gaps))} ({signed(min(gaps))} .. {signed(max(gaps))})" if len(gaps) > 1 else signed(mean(gaps))
    seconds = times.get((case["model"], case["weights"], case["stages"]))
    whole = None if seconds is None or ratio is None else ratio * case["updates"] * seconds
    return [label(case), case["optimizer"], f"{case['rate']:g}{'*' if case['at_end'] else ''}", f"{mean(losses):.3f}{spread}" if there else "diverged", gap,
            "-" if ratio is None else f"{ratio:.2f}", "-" if seconds is None else f"{1e3 * seconds:.1f} ms", "-" if whole is None else f"{whole:.1f} s"]


COLUMNS = ["weights", "optimizer", "rate", "held-out loss", "less the synchronous run's", "samples", "update", "time to its loss"]


def with_stages(case, count):
    return {**case, "stages": count}


def series_of(cases, model, optimizer, stages, x_of):
    series = {}
    for case in cases:
        if case["model"] != model or case["optimizer"] != optimizer or case["stages"] not in (1, stages):
            continue
        points = [(1.0, case["losses"])] + [(float(part), losses) for part, losses in case["budgets"]]
        points = [(x_of(with_stages(case, stages), part), [loss for _, loss in losses]) for part, losses in points]
        series[label(case)] = [point for point in points if point[0] is not None]
    return series


def write(folder, cases, simulated):
    """`cases`, `simulated`: lines of cases.jsonl and simulated.jsonl."""
    cases, simulated = sorted(cases, key=place_of), sorted(simulated, key=place_of)
    stages = sorted(({case["stages"] for case in cases} | {line["stages"] for line in simulated}) - {1}) or [2]
    rows = rows_of(cases, stages)
    for model, spec in {case["model"]: case["spec"] for case in cases}.items():
        own = [{key: value for key, value in row.items() if key != "model"} for row in rows if row["model"] == model]
        (folder / f"convergence.{model}.json").write_text(json.dumps({"schema": SCHEMA, "model": spec, "rows": own}, indent=1) + "\n")
    times = {(line["model"], line["weights"], line["stages"]): line["update_seconds"] for line in simulated}
    out = ["# Losses under stale weights", ""]
    for model in dict.fromkeys(case["model"] for case in cases):
        first = next(case for case in cases if case["model"] == model)
        out += [f"{model} (`{first['spec']}`), {first['updates']} updates of {first['batch_size']} samples. The rate is marked * where it was the last one tried.", ""]
        for count in stages:
            shown = [with_stages(case, count) for case in cases if case["model"] == model and case["stages"] in (1, count)]
            if count not in {case["stages"] for case in cases if case["model"] == model} and count != stages[0]:
                continue
            shown.sort(key=place_of)
            out += [f"## {model}, {count} stages", "", *markdown_table(COLUMNS, [cells(case, cases, times) for case in shown]), ""]
            for optimizer in dict.fromkeys(case["optimizer"] for case in shown):
                for kind, x_label, x_of in (
                        ("samples", "samples", lambda case, part: part * case["updates"] * case["batch_size"]),
                        ("seconds", "simulated seconds", lambda case, part: times.get((case["model"], case["weights"], case["stages"]), 0) * part * case["updates"] or None)):
                    picture = drawing(f"{model}, {optimizer}, {count} stages: held-out loss", x_label, series_of(cases, model, optimizer, count, x_of))
                    if picture:
                        file = f"{model}.{optimizer}.p{count}.{kind}.svg"
                        (folder / file).write_text(picture)
                        out.append(f"![held-out loss against {x_label}, {optimizer}, {count} stages]({file})")
            out.append("")
    out += ["## Searches", "", "Held-out loss at each rate that was tried, with seed 1.", "",
            *markdown_table(["model", "stages", "weights", "optimizer", "rates"],
                            [[case["model"], "any" if case["stages"] == 1 else str(case["stages"]), label(case), case["optimizer"],
                              ", ".join(f"{rate:g}: {'diverged' if loss is None else f'{loss:.3f}'}" for rate, loss in case["tried"])] for case in cases]), ""]
    memory = [[line["model"], str(line["stages"]), line["weights"], str(line["microbatches"]), f"{1e3 * line['update_seconds']:.1f} ms", line["memory"]] for line in simulated]
    if memory:
        out += ["## Simulated", "", f"Stages of a device each, as fast as the one that was profiled; links of {simulated[0]['bandwidth']}; AdamW.", "",
                *markdown_table(["model", "stages", "weights", "microbatches", "update", "memory of the fullest device"], memory), ""]
    (folder / "results.md").write_text("\n".join(out))
