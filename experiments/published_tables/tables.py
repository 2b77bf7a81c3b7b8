"""Our figures for what papers state, each by the optimizer from a published profile. A line for each row: `published` and `ours` are in the unit of the row."""
import json
import resource

from experiment import Failed, call, programs
from published import (CLUSTERS, COMMUNICATION, ELSEWHERE, GROUP_SIZES, HOROVOD, OPTIMIZER_SECONDS, ORIGINAL_CPU_SECONDS, STALL_DEVICES, STALLS,
                       TABLE_1, TORCHGPIPE)


class Missing(Exception):
    """An input that is not there."""


class Optimizer:
    """Questions about published profiles."""

    def __init__(self, inputs, output):
        self.inputs, self.output, self.asked = inputs, output, {}

    def profile(self, name):
        if not name:
            raise Missing("no profile of it is published")
        file = self.inputs / f"{name}.txt"
        if not file.exists():
            raise Missing(f"{file.name} is not among the inputs")
        return file

    def plan(self, name, *options):
        """The plan, as a document, that the optimizer answers with; where it lies is its `file`."""
        profile, key = self.profile(name), (name, *map(str, options))
        if key not in self.asked:
            file = self.output / "plans" / f"{name}.{len(self.asked)}.json"
            call([programs / "pipewright-optimizer", "plan", "--profile", profile, "--output", file, *options], file.with_suffix(".log"))
            self.asked[key] = {**json.loads(file.read_text()), "file": file}
        return self.asked[key]

    def compute_seconds(self, name):
        """Of a minibatch on one device."""
        return self.plan(name, "--gpus", 1)["predicted"]["minibatch_seconds"]


def shape(plan):
    replicas = [len(stage["ranks"]) for stage in plan["stages"]]
    return f"straight, {len(replicas)} stages" if len(replicas) > 6 and set(replicas) == {1} else "-".join(map(str, replicas))


def seconds(plan):
    return plan["predicted"]["minibatch_seconds"]


def skipped(table, case, reason, **more):
    return {"table": table, "case": case, "status": "skipped", "reason": reason, **more}


def done(table, case, published, ours, unit, why, more=None):
    return {"table": table, "case": case, "status": "done", "published": published, "ours": ours, "unit": unit, "why": why, "more": more or {}}


def configured(row, optimizer, levels):
    """PipeDream's configuration, cut where our cost model likes it best."""
    if row.configuration == "straight":
        return optimizer.plan(row.profile, *levels, "--strategy", "straight", "--use-all-devices")
    if "-" not in row.configuration:
        return optimizer.plan(row.profile, *levels, "--strategy", "dp")
    replicas = ",".join(f"{stage}:{count}" for stage, count in enumerate(row.configuration.split("-")))
    return optimizer.plan(row.profile, *levels, "--strategy", "hybrid", "--replicas", replicas)


def overlapped_data_parallel(plan):
    """Seconds of a minibatch if all of the exchange could run beside compute: no data parallelism is faster on these links."""
    stage = plan["predicted"]["stages"][0]
    return max(stage["compute_seconds"], stage["gradient_sync_seconds"]) / len(plan["stages"][0]["ranks"])


def ring_data_parallel(plan, row):
    """Seconds of a minibatch if the gradients went round a ring after the backward: 2 (m - 1) / m of them over its slowest link."""
    cluster, count = CLUSTERS[row.cluster], len(plan["stages"][0]["ranks"])
    stage = plan["predicted"]["stages"][0]
    sync = 2 * (count - 1) / count * stage["memory"]["weights_bytes"] / cluster.slowest_bytes_per_second(row.servers)
    return (stage["compute_seconds"] + sync) / count


def table_1(optimizer):
    for row in TABLE_1:
        case = f"{row.model}, {row.servers}x{row.devices} {row.cluster}, {row.configuration}"
        try:
            levels = CLUSTERS[row.cluster].levels(row.servers, row.devices)
            parallel, theirs = optimizer.plan(row.profile, *levels, "--strategy", "dp"), configured(row, optimizer, levels)
            best = optimizer.plan(row.profile, *levels)
        except Missing as missing:
            yield skipped("pipedream", case, str(missing), published=row.epoch)
            continue
        yield done("pipedream", case, row.epoch, seconds(parallel) / seconds(theirs), "times data parallelism", row.why,
                   more={"data parallel": f"{1000 * seconds(parallel):.3g} ms", "its configuration": f"{1000 * seconds(theirs):.3g} ms",
                      "ours, if data parallelism hid its exchange": f"{overlapped_data_parallel(parallel) / seconds(theirs):.2f}",
                      "ours, if it used a ring": f"{ring_data_parallel(parallel, row) / seconds(theirs):.2f}",
                      "our own plan": f"{shape(best)}, {1000 * seconds(best):.3g} ms, {seconds(parallel) / seconds(best):.2f} times"})


def stalls(optimizer):
    for model, (profile, published) in STALLS.items():
        for cluster in ("A", "B"):
            shares, hidden = [], []
            try:
                for count in STALL_DEVICES:
                    stage = optimizer.plan(profile, *CLUSTERS[cluster].of(count), "--strategy", "dp")["predicted"]["stages"][0]
                    compute, sync = stage["compute_seconds"], stage["gradient_sync_seconds"]
                    shares.append(sync / (compute + sync))
                    hidden.append(max(0.0, 1 - compute / max(compute, sync)))
            except Missing as missing:
                yield skipped("stalls", f"{model}, cluster {cluster}", str(missing), published=published)
                continue
            yield {**done("stalls", f"{model}, cluster {cluster}", published, shares[-1], "of the time, 32 devices",
                          "Our data parallelism exchanges after the backward, so all of its exchange is a stall; PyTorch's overlaps it, and the share it cannot hide is the lower "
                          "figure. The paper's bars are measured, 'up to' over three clusters.",
                          more={f"{count} devices": f"{100 * share:.0f} % ({100 * least:.0f} %)" for count, share, least in zip(STALL_DEVICES, shares, hidden)}),
                   "curve": list(zip(STALL_DEVICES, shares))}


def priced_at(plan, depths, optimizer, profile):
    """The plan with these minibatches in flight, priced again."""
    file = plan["file"].with_suffix(".depths.json")
    document = {key: value for key, value in plan.items() if key != "file"}
    document["stages"] = [{**stage, "in_flight": depth} for stage, depth in zip(document["stages"], depths)]
    file.write_text(json.dumps(document))
    return json.loads(call([programs / "pipewright-optimizer", "evaluate", "--plan", file, "--profile", optimizer.profile(profile), "--gpus", plan["world_size"],
                            "--bandwidths", CLUSTERS["A"].inside, "--json"], file.with_suffix(".log")))


def memory(optimizer):
    for model, profile in (("VGG-16", "vgg16"), ("GNMT-8", "gnmt")):
        case = f"{model}, straight, 4 stages: the fullest against data parallelism"
        try:
            planned = optimizer.plan(profile, "--gpus", 4, "--bandwidths", CLUSTERS["A"].inside, "--strategy", "straight", "--use-all-devices")
            straight = priced_at(planned, (4, 3, 2, 1), optimizer, profile)  # PipeDream's depths
            parallel = optimizer.plan(profile, "--gpus", 4, "--bandwidths", CLUSTERS["A"].inside, "--strategy", "dp")
        except Missing as missing:
            yield skipped("memory", case, str(missing), published=1.0)
            continue
        stages = [sum(stage["memory"].values()) for stage in straight["predicted"]["stages"]]
        whole = sum(parallel["predicted"]["stages"][0]["memory"].values())
        yield {**done("memory", case, 1.0, max(stages) / whole, "times data parallelism's",
                      "The paper calls the fullest stage 'on par' in a bar chart without numbers. The profile counts what every layer makes as kept, also layers that work in place, and the "
                      "activations of four minibatches of VGG-16's first layers are most of that model's memory; GNMT-8 is mostly weights, which a pipeline divides.",
                      {"data parallel": f"{whole / 2**30:.2f} GiB", **{f"stage {i}": f"{count / 2**30:.2f} GiB" for i, count in enumerate(stages)}}),
               "bars": [model, [whole / 2**30, *(count / 2**30 for count in stages)]]}


def sent_bytes(plan, bandwidth):
    """Bytes of a minibatch over all links, from the times on links of `bandwidth` without latency."""
    return sum(stage["send_seconds"] + stage["receive_seconds"] + stage["gradient_sync_seconds"] for stage in plan["predicted"]["stages"]) * bandwidth


def communication(optimizer):
    links = ["--gpus", 16, "--bandwidths", "1.25GB/s", "--latency", "0us"]
    for model, (profile, published) in COMMUNICATION.items():
        case = f"{model}, 16 devices, best pipeline"
        try:
            parallel, best = optimizer.plan(profile, *links, "--strategy", "dp"), optimizer.plan(profile, *links, "--strategy", "hybrid")
        except Missing as missing:
            yield skipped("communication", case, str(missing), published=published)
            continue
        ours = sent_bytes(best, 1.25e9) / sent_bytes(parallel, 1.25e9)
        yield done("communication", case, published, ours, "of data parallelism's bytes",
                   "The paper's figure is for its own 15-1 plan and says 'more than 85 % less'; ours is the plan that is fastest at 10 Gbit/s." if published else
                   "The paper says that the best pipeline communicates more than data parallelism, without a number.",
                   more={"plan": shape(best), "data parallel": f"{sent_bytes(parallel, 1.25e9) / 2**20:.0f} MiB a minibatch",
                      "pipeline": f"{sent_bytes(best, 1.25e9) / 2**20:.0f} MiB"})


def optimizer_time(optimizer):
    levels = CLUSTERS["A"].levels(4, 4)
    for profile, original in ORIGINAL_CPU_SECONDS.items():
        case = f"{profile}, 4x4 A"
        try:
            taken = {}
            for objective in ("pipedream", "pipewright"):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                file = optimizer.output / "plans" / f"{profile}.time.json"
                call([programs / "pipewright-optimizer", "plan", "--profile", optimizer.profile(profile), *levels, "--objective", objective, "--output", file], file.with_suffix(".log"))
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                taken[objective] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        except Missing as missing:
            yield skipped("optimizer", case, str(missing), published=OPTIMIZER_SECONDS)
            continue
        yield done("optimizer", case, OPTIMIZER_SECONDS, taken["pipedream"], "CPU s, at most",
                   "The same question, answered by an exact search over the same cuts with bounds, in C++; with our own cost model candidates are simulated too, with the links that a server shares.",
                   more={"PipeDream's program": f"{original:g} s", "ours, its objective": f"{taken['pipedream']:.2g} s", "ours, our objective": f"{taken['pipewright']:.2g} s"})


def ddlbench(optimizer):
    case = "ResNet-50, ImageNet, Horovod on 4x4 Titan RTX, 40 Gbit/s: times one device"
    try:
        parallel = optimizer.plan("resnet50", "--levels", "4,4", "--bandwidths", "10GB/s,40Gbit/s", "--strategy", "dp")
        one = optimizer.compute_seconds("resnet50")
        yield done("ddlbench", case, HOROVOD["speed_up"], one / seconds(parallel), "times one device",
                   "The profile is of a V100 and minibatches of 128; Horovod's ring runs beside the backward, ours after it. If all of it could be hidden it would be the other figure.",
                   more={"all hidden": f"{one / overlapped_data_parallel(parallel):.2f}"})
    except Missing as missing:
        yield skipped("ddlbench", case, str(missing), published=HOROVOD["speed_up"])
    for model, times in TORCHGPIPE.items():
        base, ours = min(times, key=times.get), {}
        for samples, count in times:
            case = f"{model}, torchgpipe on 4 devices, {count} microbatches of {samples}: seconds an epoch, of those with {base[1]} of {base[0]}"
            try:
                for microbatches in {count, base[1]}:
                    ours[microbatches] = seconds(optimizer.plan("resnet50", "--gpus", 4, "--bandwidths", "10GB/s", "--strategy", "straight", "--schedule", "gpipe",
                                                                "--microbatches", microbatches, "--use-all-devices"))
            except Missing as missing:
                yield skipped("ddlbench", case, str(missing), published=times[samples, count] / times[base])
                continue
            yield done("ddlbench", case, times[samples, count] / times[base], ours[count] / ours[base[1]], "times",
                       "Fill and drain alone: the profile has one size of minibatch, and nothing of kernels that use a device less well with fewer samples, which decides the paper's row.")


def quartiles(counts):
    """Of sizes of groups: least, quartiles, most. `counts[i]` groups have i + 1 members."""
    sizes = [size for size, count in enumerate(counts, 1) for _ in range(count)]
    return tuple(sizes[round(part * (len(sizes) - 1) / 4)] for part in range(5))


# Waits that stand for machines that are not all alike: part of all forwards and backwards, milliseconds. A minibatch computes 0.46 s.
NOISE = {"noise of 1 %": ((0.5, 5), (0.25, 10), (0.1, 20)), "one operation in ten 0.3 s longer": ((0.1, 300),)}


def sdpipe(optimizer):
    for noise, waits in NOISE.items():
        disturb = [word for seed, (probability, ms) in enumerate(waits, 1) for word in ("--disturb", f"random:probability={probability},duration={ms}ms,seed={seed}")]
        for window, published in GROUP_SIZES.items():
            case = f"ResNet-50, 8 pipelines of 1 stage, window {window}, {noise}"
            try:
                plan = optimizer.plan("resnet50", "--gpus", 8, "--bandwidths", CLUSTERS["A"].inside, "--strategy", "dp")
                log = optimizer.output / "plans" / f"groups.{window}.{len(waits)}.log"
                answer = json.loads(call([programs / "pipewright-optimizer", "simulate", "--plan", plan["file"], "--profile", optimizer.profile("resnet50"), "--bandwidths",
                                          CLUSTERS["A"].inside, "--minibatches", 1600, "--sync", f"partial-reduce:window={window}", "--json", *disturb], log))[0]
            except Missing as missing:
                yield skipped("sdpipe", case, str(missing), published=published[2])
                continue
            least, low, median, high, most = quartiles(answer["group_sizes"])
            yield done("sdpipe", case, published[2], median, "members, median group",
                       "How much their machines differed is not stated. Every group counts once here; with noise of a few milliseconds pipelines part, and what meets by itself is small, "
                       "until everybody waits for everybody once a window.",
                       more={"published: least, quartiles, most": ", ".join(map(str, published)), "ours": f"{least}, {low}, {median}, {high}, {most}",
                          "pace, times all-reduce": f"{answer['times_all_reduce']:.2f}", "longest window": f"{answer['longest_window_updates']:.3g}"})


def elsewhere(_):
    for claim, figure, experiment in ELSEWHERE:
        yield {"table": "elsewhere", "case": claim, "status": "done", "published": figure, "experiment": experiment}


TABLES = {"pipedream": table_1, "stalls": stalls, "memory": memory, "communication": communication, "optimizer": optimizer_time, "ddlbench": ddlbench, "sdpipe": sdpipe,
          "elsewhere": elsewhere}


def lines_of(name, optimizer):
    try:
        return list(TABLES[name](optimizer))
    except Failed as failure:
        return [{"table": name, "case": name, "status": "failed", "reason": str(failure)}]
