"""results.md and results.html of the lines of results.jsonl."""
import html

from pages import bytes_text, number

COLUMNS = ("framework", "plan", "samples/s", "speed-up", "s/epoch", "minibatch", "predicted", "bubble", "peak memory of a rank",
           "a process at most", "sent a minibatch", "loss, first -> last", "evaluation loss", "top-1", "top-5")
ABOUT = ("Steady state: warm-up is left out. Memory of a rank counts tensors, that of a process everything. Rates in brackets: more ranks than cores. A bubble is time in which a rank computes "
         "nothing, the mean over ranks. pytorch-...: PyTorch's own, on one minibatch of random images again and again; bytes sent are what went over the loopback interface, a bubble what its thread was not on a core.")
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1")


def groups(lines):
    """(benchmark, model) -> its lines, in the order they came."""
    result = {}
    for line in lines:
        result.setdefault((line["benchmark"], line["model"]), []).append(line)
    return result


def cells(line, single):
    """The texts of a line's columns."""
    if line["status"] != "done":
        return [line["framework"], f"{line['status']}: {line.get('reason', '')}"] + [""] * (len(COLUMNS) - 2)
    rate = line["samples_per_second"]
    crowded = line["cores"] and line["devices"] > line["cores"]  # times that do not compare stand in brackets
    bracket = "({})".format if crowded else "{}".format
    milliseconds, percent = (lambda value: f"{1000 * value:.3g} ms"), (lambda value: f"{100 * value:.3g} %")
    return [line["framework"], f"{line['stages']} {line['schedule']}", bracket(number(rate, 4)),
            bracket(number(rate / single)) if single else "-", bracket(number(line["epoch_seconds"])),
            milliseconds(line["minibatch_seconds"]), *(text(line[key], shown) for key, shown in (
                ("predicted_minibatch_seconds", milliseconds), ("bubble", percent), ("peak_memory_bytes", largest), ("peak_resident_bytes", largest),
                ("sent_bytes_per_minibatch", bytes_text))),
            f"{line['first_loss']:.4f} -> {line['last_loss']:.4f}", number(line["evaluation_loss"]), text(line["top1"], percent), text(line["top5"], percent)]


def text(value, shown):
    return "-" if value is None else shown(value)


def largest(of_ranks):
    return bytes_text(max(of_ranks))


def rate_of_single(lines):
    return next((line["samples_per_second"] for line in lines if line["framework"] == "single" and line["status"] == "done"), None)


def caption(line):
    return f"{line['spec']}, minibatches of {line['batch_size']} samples a device, {line['minibatches']} trained, {line['data']}, {line['device']}"


def markdown(lines):
    text = ["# DDLBench's matrix", "", ABOUT, ""]
    for (benchmark, model), part in groups(lines).items():
        text += [f"## {benchmark}, {model}", "", caption(part[0]), "", "| " + " | ".join(COLUMNS) + " |",
                 "| " + " | ".join("---" for _ in COLUMNS) + " |"]
        text += ["| " + " | ".join(cells(line, rate_of_single(part))) + " |" for line in part] + [""]
    return "\n".join(text)


def chart(part):
    """Bars of samples per second, a framework each, with a tick where the plan predicted it."""
    done = [line for line in part if line["status"] == "done"]
    if not done:
        return ""

    def predicted(line):
        seconds = line["predicted_minibatch_seconds"]
        return line["batch_size"] / seconds if seconds else 0

    widest = max(max(line["samples_per_second"], predicted(line)) for line in done)
    left, width, row = 90, 420, 24
    parts = [f'<svg viewBox="0 0 {left + width + 90} {row * len(done) + 8}" width="{left + width + 90}" role="img" aria-label="samples per second">']
    for i, line in enumerate(done):
        y, length = i * row + 4, width * line["samples_per_second"] / widest
        parts.append(f'<text x="{left - 6}" y="{y + 14}" text-anchor="end">{html.escape(line["framework"])}</text>'
                     f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{row - 6}" fill="{COLOURS[i % len(COLOURS)]}"/>'
                     f'<text x="{left + length + 6:.1f}" y="{y + 14}">{number(line["samples_per_second"], 4)}</text>')
        if predicted(line):
            x = left + width * predicted(line) / widest
            parts.append(f'<line x1="{x:.1f}" y1="{y - 2}" x2="{x:.1f}" y2="{y + row - 4}" stroke="black" stroke-width="2"><title>predicted '
                         f'{number(predicted(line), 4)}</title></line>')
    return "".join(parts) + "</svg>"


def page(lines):
    parts = ["<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>DDLBench's matrix</title><style>",
             "body{font:14px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 7px;"
             "text-align:right}td:first-child,td:nth-child(2){text-align:left}svg{font:12px sans-serif;display:block;margin:.7em 0}</style></head><body>",
             f"<h1>DDLBench's matrix</h1><p>A black tick is what the plan predicted. {html.escape(ABOUT)}</p>"]
    for (benchmark, model), part in groups(lines).items():
        parts.append(f"<h2>{html.escape(benchmark)}, {html.escape(model)}</h2><p>{html.escape(caption(part[0]))}</p>{chart(part)}<table><tr>")
        parts += [f"<th>{html.escape(column)}</th>" for column in COLUMNS]
        for line in part:
            parts.append("</tr><tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in cells(line, rate_of_single(part))))
        parts.append("</tr></table>")
    return "".join(parts) + "</body></html>\n"


def write(folder, lines):
    (folder / "results.md").write_text(markdown(lines))
    (folder / "results.html").write_text(page(lines))
