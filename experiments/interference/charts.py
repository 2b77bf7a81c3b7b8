"""Drawings of what all policies of a case come to: bars, and losses against wall time. Everything is in results.jsonl or the run folders."""
import html
import json
import pathlib
import statistics

import figures

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 60, 24


def begin(title):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 60}" width="{WIDTH}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="18" font-size="13">{html.escape(title)}</text>']


def bars(title, unit, groups, colours):
    """`groups`: (name, {policy: value}); a value that is None is not there."""
    most = max([value for _, values in groups for value in values.values() if value is not None], default=1) or 1
    parts, wide = begin(f"{title}, {unit}"), (WIDTH - LEFT - 10) / max(1, len(groups))
    base = 30 + HEIGHT - BOTTOM
    for number, (name, values) in enumerate(groups):
        at, each = LEFT + number * wide, (wide - 16) / max(1, len(values))
        parts.append(f'<text x="{at + (wide - 16) / 2:.1f}" y="{base + 14}" text-anchor="middle">{html.escape(name)}</text>')
        for place, (policy, value) in enumerate(values.items()):
            if value is None:
                continue
            high, x = (HEIGHT - BOTTOM - 20) * value / most, at + place * each
            parts.append(f'<rect x="{x:.1f}" y="{base - high:.1f}" width="{0.9 * each:.1f}" height="{high:.1f}" fill="{colours[policy]}"/>'
                         f'<text x="{x + 0.45 * each:.1f}" y="{base - high - 3:.1f}" text-anchor="middle" font-size="9">{value:.3g}</text>')
    policies = list(dict.fromkeys(policy for _, values in groups for policy in values))
    for place, policy in enumerate(policies):
        x = LEFT + 90 * place
        parts.append(f'<rect x="{x}" y="{base + 24}" width="10" height="10" fill="{colours[policy]}"/><text x="{x + 14}" y="{base + 33}">{policy}</text>')
    return "\n".join(parts) + "</svg>\n"


def loss_curve(folder):
    """(seconds, mean loss of the last 40 minibatches) of a run, every 10 minibatches."""
    lines = [line for line in figures.lines_of(folder / "metrics.jsonl") if "loss" in line]
    return [(line["elapsed_seconds"], statistics.fmean(other["loss"] for other in lines[max(0, k - 39):k + 1]))
            for k, line in enumerate(lines) if k % 10 == 9]


def curves(title, lines, colours):
    """Training loss against wall time, pauses and all."""
    runs = {line["policy"]: loss_curve(pathlib.Path(line["run"])) for line in lines}
    points = [point for curve in runs.values() for point in curve]
    if not points:
        return None
    longest, low, high = max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points)
    parts, base = begin(title), 30 + HEIGHT - BOTTOM
    for policy, curve in runs.items():
        path = " ".join(f"{LEFT + (WIDTH - LEFT - 10) * x / longest:.1f},{base - (HEIGHT - BOTTOM - 20) * (y - low) / ((high - low) or 1):.1f}" for x, y in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[policy]}" stroke-width="1.5"><title>{policy}</title></polyline>')
    parts.append(f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">{low:.3g}</text><text x="{LEFT - 6}" y="46" text-anchor="end">{high:.3g}</text>'
                 f'<text x="{WIDTH - 10}" y="{base + 14}" text-anchor="end">{longest:.3g} s</text><text x="{LEFT}" y="{base + 14}">0</text>')
    for place, policy in enumerate(runs):
        x = LEFT + 90 * place
        parts.append(f'<rect x="{x}" y="{base + 24}" width="10" height="10" fill="{colours[policy]}"/><text x="{x + 14}" y="{base + 33}">{policy}</text>')
    return "\n".join(parts) + "</svg>\n"


def busy_percent(line):
    """Mean over the ranks of the time inside forward, backward and update."""
    ranks = json.loads((pathlib.Path(line["run"]) / "summary.json").read_text())["ranks"]
    return 100 * statistics.fmean(rank["busy_fraction"] for rank in ranks)


def medians(part, value):
    """Of the repeats of each policy."""
    by_policy = {}
    for line in part:
        by_policy.setdefault(line["policy"], []).append(value(line))
    return {policy: statistics.median(values) for policy, values in by_policy.items()}


def all_of(lines, colours, groups):
    """(file name, drawing) of all cases of `lines`, which are done. DynPipe draws the same five: time to accuracy, throughput, utilisation, iteration time (and
    the trace, in pages.py)."""
    drawings = []
    for (model,), part in groups(lines, "model").items():
        cases = [(f"{load}, stage {stage}", each) for (load, kind, stage), each in groups(part, "load", "kind", "stage").items()]

        def of(value, cases=cases):
            return [(name, medians(each, value)) for name, each in cases]

        drawings += [
            (f"throughput.{model}.svg", bars(f"{model}: throughput while disturbed, settled", "samples a second",
                                             of(lambda line: line["batch_size"] / line["settled_seconds"]), colours)),
            (f"iteration.{model}.svg", bars(f"{model}: time of a minibatch while disturbed, settled", "ms", of(lambda line: 1000 * line["settled_seconds"]), colours)),
            (f"utilisation.{model}.svg", bars(f"{model}: busy ranks over the whole run", "% of the time", of(busy_percent), colours))]
        for (load, kind, stage), each in groups(part, "load", "kind", "stage").items():
            first = min(line["repeat"] for line in each)
            drawn = curves(f"{model}, {load}, stage {stage}: training loss (mean of 40) against wall time",
                           [line for line in each if line["repeat"] == first], colours)
            if drawn:
                drawings.append((f"loss.{model}.{load}.{kind}.stage={stage}.svg", drawn))
    return drawings
