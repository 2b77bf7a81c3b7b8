"""results.md, results.html and the charts of the lines of results.jsonl."""
import html

import pages

TITLES = {
    "pipedream": ("PipeDream, Table 1: epoch time against data parallelism", "Clusters: A: 4 V100 a server, PCIe (10 GB/s taken for each device), 10 Gbit/s a server; B: 8 V100, NVLink (100 GB/s taken), 25 Gbit/s; "
                  "C: 1 Titan X, 40 Gbit/s. Data parallelism and PipeDream's configuration, cut at the best place by our cost model and played by the simulator; beside them the plan that our planner takes."),
    "stalls": ("Data parallelism: the part of the time in which communication stalls it", "In brackets: what no overlap with compute could hide."),
    "memory": ("Memory of each stage", "Tensors of a rank, by the plan; 4, 3, 2 and 1 minibatches in flight, as in the paper."),
    "communication": ("Communication of a minibatch, all links", ""),
    "optimizer": ("Time to plan", "CPU seconds of the whole program, this machine; PipeDream's program as measured on two shared cores. The paper: less than 8 s for all models and clusters."),
    "ddlbench": ("DDLBench: what its tables and texts state", "Speed-ups that exist only as bars in its figures are left out."),
    "sdpipe": ("SDPipe: sizes of groups", "`simulate --sync partial-reduce`, 1600 minibatches."),
    "elsewhere": ("Rows that other experiments own", ""),
}


def figure(value):
    return value if isinstance(value, str) else pages.number(value)


def table(name, lines):
    """Columns and rows."""
    if name == "elsewhere":
        return ["claim", "published", "ours"], [[line["case"], line["published"], f"[{line['experiment']}](../../experiments/{line['experiment']}/RESULTS.md)"] for line in lines]
    more = list(dict.fromkeys(key for line in lines for key in line.get("more", {})))
    unit = next((line["unit"] for line in lines if "unit" in line), "")
    rows = []
    for line in lines:
        if line["status"] != "done":
            rows.append([line["case"], figure(line.get("published")), f"{line['status']}: {line['reason']}"] + [""] * len(more))
            continue
        rows.append([line["case"], figure(line["published"]), figure(line["ours"]), *(line["more"].get(key, "") for key in more)])
    return ["", f"published, {unit}", f"ours, {unit}", *more], rows


def reasons(lines):
    """reason -> the rows it holds for."""
    result = {}
    for line in lines:
        if line.get("why"):
            result.setdefault(line["why"], []).append(line["case"])
    return result


def why(lines):
    if len(found := reasons(lines)) == 1:
        return [f"Why they differ: {next(iter(found))}"]
    return [f"- {cases[0]}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''}: {reason}" for reason, cases in found.items()]


def charts(by_table):
    """name -> SVG."""
    result = {}
    rows = [line for line in by_table.get("pipedream", []) if line["status"] == "done"]
    if rows:
        result["pipedream"] = pages.bars("Epochs in the time of one of data parallelism", [(line["case"], [line["published"], line["ours"]]) for line in rows], ("published", "ours"))
    rows = [line for line in by_table.get("stalls", []) if "curve" in line]
    if rows:
        result["stalls"] = pages.curves("Data parallelism, waiting for its exchange", "devices", "part of the time", {line["case"]: line["curve"] for line in rows})
    rows = [line for line in by_table.get("memory", []) if "bars" in line]
    if rows:
        result["memory"] = pages.bars("GiB of a rank", [tuple(line["bars"]) for line in rows], ("data parallel", "stage 0", "stage 1", "stage 2", "stage 3"))
    return result


def write(output, lines):
    by_table = {}
    for line in lines:
        by_table.setdefault(line["table"], []).append(line)
    drawn = charts(by_table)
    text, parts = ["# Published tables, from published inputs", ""], []
    for name in TITLES:
        part = by_table.get(name)
        if not part:
            continue
        title, about = TITLES[name]
        columns, rows = table(name, part)
        text += [f"## {title}", "", *([about, ""] if about else []), *pages.markdown_table(columns, rows), "", *why(part), ""]
        if name in drawn:
            (output / f"{name}.svg").write_text(drawn[name])
            text += [f"![{title}]({name}.svg)", ""]
        parts += [f"<h2>{html.escape(title)}</h2><p>{html.escape(about)}</p>", drawn.get(name, ""), pages.html_table(columns, rows),
                  *(f"<p>{html.escape(sentence)}</p>" for sentence in why(part))]
    (output / "results.md").write_text("\n".join(text))
    (output / "results.html").write_text(pages.html_page("Published tables, from published inputs", parts))
