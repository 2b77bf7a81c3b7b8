"""The page of results: how many models train on either side, why others do not, and which these are."""
import collections
import re

from pages import markdown_table

OUTCOMES = {
    "pytorch": {"equal": "trains, losses of plain PyTorch", "differs": "trains, other losses", "refused": "the tracer refuses", "failed": "fails at run time",
                "time-out": "time-out"},
    "door": {"trains": "trains, and the weights are read back", "fails": "fails", "time-out": "time-out"},
}
ROUNDING = 1e-6  # of a loss: more than any model under any plan of compare_models without a reason
SIDES = {"pytorch": "`torch.distributed.pipelining`", "door": "`pipewright train`"}


def kind_of(reason):
    """Reasons that differ in names and numbers only are one."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\w.]*\d[\w.]*", "_", reason)[:80]


def counts(lines):
    rows = []
    for side, outcomes in OUTCOMES.items():
        some = [line["outcome"] for line in lines if line["side"] == side]
        for outcome in dict.fromkeys([*outcomes, *some]):
            if some:
                rows.append([SIDES[side], outcomes.get(outcome, outcome), f"{some.count(outcome)} of {len(some)}"])
    return markdown_table(["side", "outcome", "models"], rows)


def reasons(lines, side):
    groups = collections.defaultdict(list)
    for line in lines:
        if line["side"] == side and line.get("reason"):
            groups[line["outcome"], kind_of(line["reason"])].append(line)
    rows = [[OUTCOMES[side].get(outcome, outcome), str(len(some)), "`" + some[0]["reason"].replace("|", "\\|") + "`", ", ".join(line["model"] for line in some)]
            for (outcome, _), some in sorted(groups.items(), key=lambda group: -len(group[1]))]
    return markdown_table(["outcome", "models", "the message of the first", "which"], rows) if rows else []


def sentences(lines, names):
    """What the counts do not say."""
    said, theirs = [], [line for line in lines if line["side"] == "pytorch"]
    if equal := [line for line in theirs if line["outcome"] == "equal"]:
        cuts = collections.Counter(len(line["tried"]) for line in equal)
        said.append("Of those that train under PyTorch's tracer " + ", ".join(
            f"{cuts[k]} under the {word} cut that was tried" for k, word in enumerate(("first", "second", "third"), 1) if cuts[k])
            + f"; {sum(line['difference'] == 0 for line in equal)} to the last bit, the one that is furthest off to {max(line['difference'] for line in equal):.1e} of a loss.")
    if eager := [line["eager"] for line in theirs if "eager" in line]:
        said.append(f"Of {len(eager)} models of transformers that do not, {eager.count('equal')} do with another attention than their own, `eager`, whose masks are "
                    "floating-point numbers.")
    if plans := collections.Counter(f"{line['strategy']} with {line['stages']} stages on {line['ranks']} ranks" for line in lines if "strategy" in line):
        said.append("Plans that the door advised and took: " + ", ".join(f"{plan} for {count}" for plan, count in plans.most_common()) + ".")
    for side in SIDES:
        tried = {line["model"] for line in lines if line["side"] == side}
        left = [name for name in names if name not in tried]
        if left and len(left) < len(tried):
            said.append(f"Not tried by {SIDES[side]}: {len(left)} of {len(names)} models, {', '.join(left)}.")
        elif left:
            said.append(f"Tried by {SIDES[side]}: {len(tried)} of {len(names)} models, {', '.join(name for name in names if name in tried) or 'none'}.")
    return "\n\n".join(said)


def page(lines, names):
    """`names`: all that there are, in their order."""
    lines = sorted(lines, key=lambda line: names.index(line["model"]))
    parts = ["# Any model, in two stages", "", *counts(lines), "", sentences(lines, names), ""]
    for side in SIDES:
        if some := reasons(lines, side):
            parts += [f"## Why models do not train: {SIDES[side]}", "", *some, ""]
    if differing := [line for line in lines if line.get("difference", 0) > ROUNDING]:
        parts += ["## Further from plain PyTorch than rounding", "", *markdown_table(["model", "largest difference, as a part of the loss", "cut"], [
            [line["model"], f"{line['difference']:.1e}", line["cut"]] for line in differing]), ""]
    return "\n".join(parts)
