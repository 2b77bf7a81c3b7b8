"""The page of the recovery experiment."""


def seconds(value):
    return "-" if value is None else f"{value:.2f} s"


def killed(line):
    """Paragraphs of a run that lost ranks."""
    what = f"{line['every']:g} s" if line["part"] == "kills" else f"{line['every']} minibatches"
    text = [f"**{line['part']}**: {line['model']}, {line['ranks']} ranks, {line['minibatches']} minibatches in {line['seconds']:.0f} s; "
            f"{line['killed']} of {line['kills']} kills, one every {what}, seed {line['seed']}: {line['recoveries']} recoveries, {line['hangs']} hangs. Load before {line['load'][0]:.1f}, median {line['load'][1]:.1f}, "
            f"most {line['load'][2]:.1f}.", ""]
    if line["killed"]:
        text += ["| from the kill to the next finished minibatch | |", "| --- | --- |",
                 f"| median | {seconds(line['median_seconds'])} |", f"| 90th percentile | {seconds(line['percentile_90_seconds'])} |", f"| worst | {seconds(line['worst_seconds'])} |",
                 f"| median of the first, of the last quarter of kills | {seconds(line['first_quarter_median_seconds'])}, {seconds(line['last_quarter_median_seconds'])} |",
                 f"| median until further than before the kill | {seconds(line['median_new_seconds'])} |", f"| longest without a line before a kill | {seconds(line['worst_silent_seconds'])} |", f"| minibatches done again, median | {line['median_again']:g} |",
                 f"| kills of rank {', '.join(line['kills_of_rank'])} | {', '.join(map(str, line['kills_of_rank'].values()))} |",
                 f"| from | {', '.join(f'{count} {place}' for place, count in line['from'].items())} |", ""]
    if line["growth"]:
        text += ["| held: the most threads and descriptors, else the median | second quarter | last quarter |", "| --- | --- | --- |", *(f"| {key.replace('_', ' ')} | {early:.10g} | {late:.10g} |" for key, (early, late) in line["growth"].items()), ""]
    text += [f"Fault: {fault}." for fault in line["faults"]] or ["Every minibatch stands once in metrics.jsonl; losses and the bytes of model.safetensors are those of the undisturbed run; nothing was left behind."]
    return [*text, ""]


def copied(lines):
    text = ["**copies**: a minibatch on two ranks without and with copies every 20 minibatches, in turns; median (quartiles).", "",
            "| model | rounds | without (ms) | with (ms) | time, with over without | CPU time, with over without | load |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for line in lines:
        if line["status"] != "done":
            text.append(f"| {line['model']} | failed: {'; '.join(line['faults'])} | | | | | |")
            continue
        without, copies = line["end"], line["restart"]
        rest = [f"{1000 * of[1]:.2f}" for of in (without, copies)] + [f"{of[1]:.3f} ({of[0]:.3f} .. {of[2]:.3f})" for of in (line["ratio"], line["cpu_ratio"])] + [f"{line['load'][1]:.1f}"]
        text.append(f"| {line['model']} | {line['rounds']} | {' | '.join(rest)} |")
    return [*text, ""]


def markdown(lines):
    text = []
    for line in lines:
        if line["part"] != "copies":
            text += killed(line)
    copies = [line for line in lines if line["part"] == "copies"]
    return "\n".join(text + (copied(copies) if copies else [])).rstrip("\n") + "\n"
