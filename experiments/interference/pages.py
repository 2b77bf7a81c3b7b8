"""results.md and the traces of the lines of results.jsonl."""
import html
import pathlib
import statistics

import charts
import figures

COLOURS = {"none": "#7f7f7f", "epoch": "#f28e2b", "naive": "#59a14f", "measured": "#4e79a7", "predict": "#b07aa1"}
COLUMNS = ("disturbed", "policy", "quiet", "disturbed, settled", "quiet again", "gain, settled", "of the ideal (1 + f)/2", "by its own quiet pace", "gain, all disturbed",
           "gain, whole run", "found after", "changes at minibatch", "pause", "gap", "evaluated: loss", "top-1")


def milliseconds(seconds):
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms"


def spread(values, text):
    """The median, and where there are several the smallest and the largest."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    if len(values) == 1:
        return text(values[0])
    return f"{text(statistics.median(values))} ({text(min(values))} .. {text(max(values))})"


def sentence(line):
    detection = line["detection"]
    found = f"found after {detection['minibatches']} minibatches, {detection['seconds']:.2f} s" if detection else "not found"
    changes = ", ".join(f"{change['first_minibatch']} (pause {milliseconds(change['pause_seconds'])})" for change in line["changes"])
    return (f"{milliseconds(line['before_seconds'])} a minibatch, disturbed {milliseconds(line['settled_seconds'])}, then "
            f"{milliseconds(line['after_seconds'])}; {found}; changes: {changes or 'none'}; {line['total_seconds']:.1f} s")


def groups(lines, *keys):
    result = {}
    for line in lines:
        result.setdefault(tuple(line[key] for key in keys), []).append(line)
    return result


def none_of(line, lines):
    """The run without changes of the same case and repeat."""
    same = ("model", "load", "stage", "repeat", "kind", "come", "minibatches")
    return next((other for other in lines if other["policy"] == "none" and all(other[key] == line[key] for key in same)), None)


def cells(part, lines):
    """Of the repeats of one case and policy."""
    one = part[0]
    ratios = [figures.against_none(line, none_of(line, lines)) for line in part]
    detections = [line["detection"] for line in part if line["detection"]]
    changes = [change for line in part for change in line["changes"]]

    def ratio(key, text):
        return spread([each.get(key) for each in ratios], text)

    def of(key):
        return spread([line[key] for line in part], milliseconds)

    found = "-"
    if detections:
        found = (f"{spread([each['minibatches'] for each in detections], str)} minibatches, "
                 f"{spread([each['seconds'] for each in detections], '{:.2g} s'.format)}")
    def evaluated(key, text):
        values = [line["evaluation"][key] for line in part if key in line.get("evaluation", {})]
        return spread(values, text) + (f", deviation {text(statistics.stdev(values))}" if len(values) > 1 else "")

    f = ratio("slowdown", "{:.2f}".format)
    static = one["policy"] == "none"
    return [f"{one['load']} ({one['processes']} x {one['kind']}), stage {one['stage']}, f = {f}", one["policy"], of("before_seconds"), of("settled_seconds"),
            of("after_seconds"), "1" if static else ratio("gain", "{:.2f}".format), "-" if static else ratio("of_ideal", "{:.2f}".format), "-" if static else ratio("own_of_ideal", "{:.2f}".format),
            "1" if static else ratio("during", "{:.2f}".format), "1" if static else ratio("net", "{:.2f}".format), found,
            "; ".join(", ".join(str(change["first_minibatch"]) for change in line["changes"]) or "none" for line in part),
            spread([change["pause_seconds"] for change in changes], milliseconds), spread([change["gap_seconds"] for change in changes], milliseconds),
            evaluated("loss", "{:.3f}".format), evaluated("top1", "{:.3f}".format)]


def markdown(lines):
    text = ["# Interference", "",
            "Two ranks on two pinned cores; hogs beside the rank of one stage from one minibatch to another. Times are those of a minibatch, medians: quiet, in the second "
            "half of the disturbance, in the second half of what follows. Gains are against the run without changes: settled, over all disturbed minibatches, and over "
            "the whole run, pauses and all. f is how much slower the disturbed run without changes is; two balanced stages could gain (1 + f)/2; by its own quiet pace: both runs' times over what they took when quiet, as the machine is not as fast in one run as in the next. Pause: of rank 0, "
            "from the last backward to the first forward; gap: what the losses around the change lie further apart. Evaluated: the weights at the end. Of several repeats: median (least .. most).", ""]
    for (model,), part in groups(lines, "model").items():
        done = [line for line in part if line["status"] == "done"]
        text += [f"## {model}", "", f"{part[0]['spec']}, minibatches of {part[0]['batch_size']}, {part[0]['minibatches']} or so trained, epochs of "
                 f"{part[0]['epoch_minibatches']}", "", "| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
        text += ["| " + " | ".join(cells(repeats, done)) + " |" for repeats in groups(done, "load", "kind", "stage", "policy").values()]
        text += [f"\n{line['load']}, stage {line['stage']}, {line['policy']}: failed: {line['reason']}" for line in part if line["status"] == "failed"]
        text += [""]
        for case in groups(done, "load", "kind", "stage"):
            load, kind, stage = case
            text += [f"![iteration times]({trace_name(model, *case)})", "", f"![loss against time](loss.{model}.{load}.{kind}.stage={stage}.svg)", ""]
        if done:
            text += [f"![{name}]({name}.{model}.svg)" for name in ("throughput", "iteration", "utilisation")] + [""]
    return "\n".join(text)


def trace_name(model, load, kind, stage):
    return f"trace.{model}.{load}.{kind}.stage={stage}.svg"


def ticks(most, count=5):
    step = next(unit * scale for scale in (10.0**e for e in range(-4, 6)) for unit in (1, 2, 5) if unit * scale * count >= most)
    return [i * step for i in range(int(most / step) + 1)]


def trace(lines):
    """Iteration times of the first repeat of a case: every minibatch a point, changes as lines with a word."""
    left, width, row, top = 60, 900, 130, 34
    first = min(line["repeat"] for line in lines)
    lines = [line for line in lines if line["repeat"] == first]
    periods = {line["policy"]: [None if seconds is None else 1000 * seconds for seconds in figures.trace_of(pathlib.Path(line["run"]))[1]] for line in lines}
    count = max(map(len, periods.values()))
    # A pause is higher than the rest: cut off where it would hide it, its height written.
    known = [[seconds for seconds in times if seconds is not None] for times in periods.values()]
    most = 1.3 * max(sorted(times)[int(0.98 * len(times)) - 1] for times in known)
    height = top + len(lines) * (row + 24) + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height}" width="{left + width + 20}" font-family="sans-serif" '
             f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
             f'<text x="{left}" y="16" font-size="13">{html.escape(lines[0]["spec"])}: {lines[0]["processes"]} x {lines[0]["kind"]} beside stage {lines[0]["stage"]}; '
             f'ms from minibatch to minibatch, every one</text>']
    for number, line in enumerate(lines):
        times, base = periods[line["policy"]], top + number * (row + 24) + row

        def x(minibatch):
            return left + width * minibatch / count

        def y(value, base=base):
            return base - row * min(value, most) / most

        parts.append(f'<rect x="{x(line["hogs_came"]):.1f}" y="{base - row}" width="{x(line["hogs_went"]) - x(line["hogs_came"]):.1f}" height="{row}" '
                     f'fill="#f4d9d9"/><text x="{left + 6}" y="{base - row + 13}" font-weight="bold" fill="{COLOURS[line["policy"]]}">{line["policy"]}</text>'
                     f'<text x="{x(line["hogs_came"]) + 4:.1f}" y="{base - row + 13}" fill="#a04040">hogs</text>')
        for tick in ticks(most):
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
                         f'<text x="{left - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for k, value in enumerate(times):
            if value is not None:
                parts.append(f'<circle cx="{x(k):.1f}" cy="{y(value):.1f}" r="1.3" fill="{COLOURS[line["policy"]]}"/>')
        for k, value in enumerate(times):
            if value is not None and value > most:
                parts.append(f'<text x="{x(k) + 3:.1f}" y="{base - row + 25}" fill="#666">{value:.0f}</text>')
        for change in line["changes"]:
            at = x(change["first_minibatch"])
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{base - row}" y2="{base}" stroke="black" stroke-dasharray="4 3"/>'
                         f'<text x="{at + 3:.1f}" y="{base - 5}">change at {change["first_minibatch"]}<title>{html.escape(change["reason"] or "")}</title></text>')
        if line["detection"]:
            at = x(line["hogs_came"] + line["detection"]["minibatches"])
            parts.append(f'<path d="M{at:.1f},{base} l-4,8 h8 z" fill="#a04040"><title>found</title></path>')
    for tick in ticks(count, 10):
        parts.append(f'<text x="{left + width * tick / count:.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>')
    return "\n".join(parts) + "</svg>\n"


def write(folder, lines):
    (folder / "results.md").write_text(markdown(lines))
    done = [line for line in lines if line["status"] == "done"]
    for case, part in groups(done, "model", "load", "kind", "stage").items():
        (folder / trace_name(*case)).write_text(trace(part))
    for name, drawing in charts.all_of(done, COLOURS, groups):
        (folder / name).write_text(drawing)
