"""results.md, results.html and crossover.svg of the lines of results.jsonl."""
import pages

BYTES_PER_SECOND = {"shm": 2e9, "1gbit": 1.25e8, "200mbit": 2.5e7}
ABOUT = ("Samples per second, measured (predicted). In brackets: more ranks than cores, times that say nothing of a plan; with a share of a core for each rank (a processor quota) they are slower devices, as fast as training on one of them says, and planned as such. Chosen: what the planner takes of these; its price: how much slower than the measured winner it is. "
         "Limited links: network namespaces with a token bucket (tc tbf) each way at each rank, messages by Gloo over TCP.")


def questions(lines):
    """(ranks, model, link) -> strategy -> its line, in their order."""
    result = {}
    for line in sorted(lines, key=lambda line: (line["ranks"], list(BYTES_PER_SECOND).index(line["link"]))):
        result.setdefault((line["ranks"], line["model"], line["link"]), {})[line["strategy"]] = line
    return dict(sorted(result.items(), key=lambda item: item[0][:2]))


def rate(line, seconds):
    return line["batch_size"] / line[seconds] if seconds in line else None


def winner(part, seconds):
    """Of the strategies, the fastest by these seconds; None if there is none."""
    known = {strategy: line[seconds] for strategy, line in part.items() if line.get(seconds)}
    return min(known, key=known.get) if known else None


def cell(line):
    if line is None or "predicted_seconds" not in line:
        return "-" if line is None or line["status"] == "skipped" else line["status"]
    predicted = pages.number(rate(line, "predicted_seconds"))
    if line["status"] != "done":
        return f"{line['status']} ({predicted})"
    measured = pages.number(rate(line, "measured_seconds"))
    plan = f"{line['plan']}: " if line["strategy"] in ("straight", "hybrid") else ""
    crowded = ranks_of(line["plan"]) * line.get("share", 1) > line["cores"] and not line.get("take_turns")
    return f"{plan}{f'({measured})' if crowded else measured} ({predicted})"


def ranks_of(shape):
    return sum(int(part) for part in shape.split("-") if part.isdigit())


def rows(found):
    result = []
    for (ranks, model, link), part in found.items():
        if all(line["status"] == "unavailable" for line in part.values()):
            result.append([str(ranks), model, link, f"skipped: {next(iter(part.values()))['reason']}"] + [""] * 6)
            continue
        chosen, best = winner(part, "predicted_seconds"), winner(part, "measured_seconds")
        whole = best and part[chosen].get("measured_seconds")
        price = f"{100 * (part[chosen]['measured_seconds'] / part[best]['measured_seconds'] - 1):.0f} %" if whole else "-"
        result.append([str(ranks), model, link, *(cell(part.get(strategy)) for strategy in ("one device", "dp", "straight", "hybrid")), best or "-", chosen or "-", price])
    return result


COLUMNS = ["ranks", "model", "link", "one device", "dp", "straight", "hybrid", "wins", "chosen", "its price"]


def gains(found, ranks, seconds):
    """model -> [(bandwidth in Gbit/s, best pipeline's pace against data parallelism's)]."""
    result = {}
    for (count, model, link), part in found.items():
        pipelines = [part[strategy][seconds] for strategy in ("straight", "hybrid") if part.get(strategy, {}).get(seconds)]
        if count == ranks and pipelines and part.get("dp", {}).get(seconds):
            result.setdefault(model, []).append((8e-9 * BYTES_PER_SECOND[link], part["dp"][seconds] / min(pipelines)))
    return {model: sorted(points) for model, points in result.items()}


def chart(found, ranks):
    measured, predicted = gains(found, ranks, "measured_seconds"), gains(found, ranks, "predicted_seconds")
    series = {**measured, **{f"{model} predicted": points for model, points in predicted.items() if model in measured}}
    if not series:
        return ""
    return pages.curves(f"Best pipeline against data parallelism, {ranks} ranks; dashed: predicted. Above 1 the pipeline wins", "Gbit/s of a link (16: shared memory)",
                        "times data parallelism's pace", series, dashed=tuple(name for name in series if name.endswith(" predicted")), level=1, logarithmic=True)


def write(output, lines):
    found = questions(lines)
    table = rows(found)
    counts = sorted({ranks for ranks, _, _ in found})
    charts = {ranks: chart(found, ranks) for ranks in counts}
    text = ["# Data parallel or a pipeline", "", ABOUT, "", *pages.markdown_table(COLUMNS, table), ""]
    for ranks, drawn in charts.items():
        if drawn:
            (output / f"crossover_{ranks}.svg").write_text(drawn)
            text += [f"![{ranks} ranks: best pipeline against data parallelism, by bandwidth](crossover_{ranks}.svg)", ""]
    (output / "results.md").write_text("\n".join(text))
    (output / "results.html").write_text(pages.html_page("Data parallel or a pipeline", [f"<p>{ABOUT}</p>", pages.html_table(COLUMNS, table), *charts.values()]))
