#!/usr/bin/env python3
"""Trains models of torchvision and transformers five steps in PyTorch and, exported, in Pipewright; compares the losses.

    python tests/models/pt2/compare_models.py --programs build/release/bin [--all] [--load] [--jobs 2] [--output table.md] [NAME ...]

Without names: all of torchvision's classifiers and transformers' GPT-2, BERT and ViT; with --all also segmentation, video, 50 more of
transformers and timm's. Small configurations, no dropout (its numbers are Pipewright's own). Each model trains on one device, then under
three plans, drawn at random from its name: two to four stages, cut anywhere where the graph may be cut, each plan under another schedule,
with one or two minibatches an update, stages in any order of ranks, some recomputed. Prints a table; fails if a loss of a plan differs
from PyTorch's by more than 1e-4 of it, or from that of one device by more than 1e-6, unless `pipewright-runtime verify`
says that it is the serial reference's to the bit and no further off than what rounding does to one device (where a plan gives
an earlier stage the middle one of a value's uses, their gradients are added in another order, and a batch norm of four values
makes much of it). --load only exports the models and loads the files.
"""
import argparse
import concurrent.futures
import difflib
import importlib.util
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
from pipewright import exporting  # noqa: E402

STEPS, RATE = 5, 0.01


def vision(name, image=64, **options):
    def make():
        import torchvision

        model = torchvision.models.get_model(name, num_classes=10, **options)
        return model, {"images": lambda n: torch.randn(n, 3, image, image), "labels": labels}

    return make


def labels(n):
    return torch.randint(0, 10, (n,))


def tokens(n):
    return torch.randint(0, 100, (n, 16))


def built(kind, name, vocabulary=100, **options):
    """A model of transformers, its class or auto class and its type, small."""
    import transformers

    config = transformers.AutoConfig.for_model(name, **({"vocab_size": vocabulary} if vocabulary else {}), **options)
    config.use_cache = False
    config._experts_implementation = "batched_mm"  # the others are operators of transformers
    make = getattr(transformers, kind)
    return make.from_config(config) if kind.startswith("Auto") else make(config)


def language(kind, name, **options):
    return lambda: (built(kind, name, **options), {"tokens": tokens, "labels": tokens})


def translation(name, **options):
    """An encoder and a decoder."""

    def make():
        model = built("AutoModelForSeq2SeqLM", name, **options)
        forward = model.forward
        model.forward = lambda source, target: forward(input_ids=source, decoder_input_ids=target, use_cache=False)
        return model, {"source": tokens, "target": tokens, "labels": tokens}

    return make


def on(field, shape, kind, name, vocabulary=None, **options):
    """Another field of numbers, and classes."""
    return lambda: (built(kind, name, vocabulary, num_labels=10, **options), {field: lambda n: torch.randn(n, *shape), "labels": labels})


def images_of(name, image=32, **options):
    return on("images", (3, image, image), "AutoModelForImageClassification", name, image_size=image, **options)


def timm_model(name, image=64, **options):
    def make():
        import timm

        return timm.create_model(name, num_classes=10, **options), {"images": lambda n: torch.randn(n, 3, image, image), "labels": labels}

    return make


def segmentation(name, image=64):
    def make():
        import torchvision

        model = torchvision.models.get_model(name, num_classes=10, weights=None, weights_backbone=None)
        return model, {"images": lambda n: torch.randn(n, 3, image, image), "labels": lambda n: torch.randint(0, 10, (n, image, image))}

    return make


def video(name, frames=8, image=32, **options):
    def make():
        import torchvision

        return torchvision.models.get_model(name, num_classes=10, **options), {
            "video": lambda n: torch.randn(n, 3, frames, image, image), "labels": labels}

    return make


def detection_backbone():
    """What Faster R-CNN looks at; the levels of its pyramid are pooled and classified."""
    import torchvision

    class Pyramid(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(
                backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=torch.nn.BatchNorm2d)
            self.head = torch.nn.Linear(256, 10)

        def forward(self, images):
            return self.head(sum(level.mean((2, 3)) for level in self.body(images).values()))

    return Pyramid(), {"images": lambda n: torch.randn(n, 3, 64, 64), "labels": labels}


def masked_autoencoder():
    import transformers

    config = transformers.ViTMAEConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
                                       patch_size=8, decoder_hidden_size=32, decoder_num_hidden_layers=2, decoder_num_attention_heads=4,
                                       decoder_intermediate_size=64)
    model = transformers.ViTMAEForPreTraining(config)
    forward = model.forward
    model.forward = lambda images, noise: (forward(pixel_values=images, noise=noise).loss,)
    return model, {"images": lambda n: torch.randn(n, 3, 32, 32), "noise": lambda n: torch.rand(n, 16)}


def two_towers():
    """CLIP: the loss pairs texts and images of the minibatch."""
    import transformers

    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    config = transformers.CLIPConfig(text_config=dict(small, vocab_size=100, max_position_embeddings=16, eos_token_id=99),
                                     vision_config=dict(small, image_size=32, patch_size=8), projection_dim=32)
    model = transformers.CLIPModel(config)
    forward = model.forward
    model.forward = lambda tokens, images: (forward(input_ids=tokens, pixel_values=images, return_loss=True).loss,)
    return model, {"tokens": tokens, "images": lambda n: torch.randn(n, 3, 32, 32)}


def classifiers():
    """All that torchvision lists, at reduced size."""
    import torchvision

    sizes = {"maxvit_t": dict(image=224), "vit_h_14": dict(image=56, image_size=56), "googlenet": dict(init_weights=False),
             "inception_v3": dict(image=96, aux_logits=False, init_weights=False)}
    sizes.update({name: dict(image_size=64) for name in "vit_b_16 vit_b_32 vit_l_16 vit_l_32".split()})
    return {name: vision(name, **sizes.get(name, {})) for name in torchvision.models.list_models(module=torchvision.models)}


MODELS = classifiers()
LARGE = ["regnet_y_128gf", "vit_h_14"]  # 2.6 GB of weights each: one at a time
USUAL = [*MODELS, "gpt2", "bert", "vit (transformers)"]
for name in "deeplabv3_resnet50 lraspp_mobilenet_v3_large".split():
    MODELS[name] = segmentation(name)
MODELS["resnet18 with pyramid"] = detection_backbone
MODELS.update({name: video(name) for name in "r3d_18 swin3d_t".split()})

SMALL = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64)
CAUSAL, MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
MODELS.update({
    "gpt2": language(CAUSAL, "gpt2", n_layer=2, n_embd=32, n_head=4, n_positions=32),
    "llama": language(CAUSAL, "llama", num_key_value_heads=2, **SMALL),
    "mistral": language(CAUSAL, "mistral", num_key_value_heads=2, sliding_window=8, **SMALL),
    "qwen2": language(CAUSAL, "qwen2", num_key_value_heads=2, **SMALL),
    "qwen3": language(CAUSAL, "qwen3", num_key_value_heads=2, head_dim=8, **SMALL),
    "gemma2": language(CAUSAL, "gemma2", num_key_value_heads=2, head_dim=8, **SMALL),
    "phi": language(CAUSAL, "phi", **SMALL),
    "phi3": language(CAUSAL, "phi3", num_key_value_heads=2, pad_token_id=0, **SMALL),
    "gpt_neo": language(CAUSAL, "gpt_neo", num_layers=2, hidden_size=32, num_heads=4, attention_types=[[["global", "local"], 1]],
                        max_position_embeddings=32),
    "gpt_neox": language(CAUSAL, "gpt_neox", **SMALL),
    "gptj": language(CAUSAL, "gptj", n_layer=2, n_embd=32, n_head=4, rotary_dim=4, n_positions=32),
    "opt": language(CAUSAL, "opt", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, ffn_dim=64, max_position_embeddings=32,
                    word_embed_proj_dim=32),
    "bloom": language(CAUSAL, "bloom", n_layer=2, hidden_size=32, n_head=4),
    "falcon": language(CAUSAL, "falcon", num_hidden_layers=2, hidden_size=32, num_attention_heads=4),
    "mpt": language(CAUSAL, "mpt", n_layers=2, d_model=32, n_heads=4, max_seq_len=32),
    "olmo2": language(CAUSAL, "olmo2", **SMALL),
    "stablelm": language(CAUSAL, "stablelm", num_key_value_heads=4, **SMALL),
    "mixtral": language(CAUSAL, "mixtral", num_key_value_heads=2, num_local_experts=4, **SMALL),
    "mamba": language(CAUSAL, "mamba", hidden_size=32, num_hidden_layers=2, state_size=4),
    "mamba2": language(CAUSAL, "mamba2", hidden_size=32, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=16, n_groups=1, chunk_size=8),
    "rwkv": language(CAUSAL, "rwkv", hidden_size=32, num_hidden_layers=2, context_length=32),
    "bert": language(MASKED, "bert", **SMALL),
    "distilbert": language(MASKED, "distilbert", n_layers=2, dim=32, n_heads=4, hidden_dim=64),
    "roberta": language(MASKED, "roberta", **SMALL),
    "albert": language(MASKED, "albert", embedding_size=16, **SMALL),
    "electra": language(MASKED, "electra", embedding_size=16, **SMALL),
    "deberta-v2": language(MASKED, "deberta-v2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
                           max_relative_positions=16, position_biased_input=False, share_att_key=True, norm_rel_ebd="layer_norm", **SMALL),
    "mpnet": language(MASKED, "mpnet", **SMALL),
    "funnel": language(MASKED, "funnel", block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=64),
    "fnet": language(MASKED, "fnet", num_hidden_layers=2, hidden_size=32, intermediate_size=64),
    "modernbert": language(MASKED, "modernbert", pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
                           reference_compile=False, **SMALL),
    "t5": translation("t5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
    "bart": translation("bart", d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32),
    "marian": translation("marian", d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                          encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, pad_token_id=0, decoder_start_token_id=0),
    "vit (transformers)": images_of("vit", patch_size=8, **SMALL),
    "deit": on("images", (3, 32, 32), "DeiTForImageClassification", "deit", image_size=32, patch_size=8, **SMALL),
    "beit": images_of("beit", patch_size=8, **SMALL),
    "dinov2": images_of("dinov2", patch_size=8, num_hidden_layers=2, hidden_size=32, num_attention_heads=4),
    "swin (transformers)": images_of("swin", 64, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "swinv2 (transformers)": images_of("swinv2", 64, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "convnext (transformers)": images_of("convnext", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
    "convnextv2": images_of("convnextv2", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
    "mobilevit": images_of("mobilevit", 64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 16, 16, 16, 24, 32, 64], num_attention_heads=2),
    "segformer": images_of("segformer", 64, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    "poolformer": images_of("poolformer", 64, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    "pvt": images_of("pvt", 64, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4]),
    "whisper": on("features", (20, 32), "AutoModelForAudioClassification", "whisper", 100, num_mel_bins=20, max_source_positions=16, d_model=32,
                  encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, classifier_proj_size=16, pad_token_id=0),
    "wav2vec2": on("audio", (1600,), "AutoModelForAudioClassification", "wav2vec2", 32, conv_dim=[16, 16], conv_stride=[5, 4],
                   conv_kernel=[10, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
                   classifier_proj_size=16, apply_spec_augment=False, layerdrop=0.0, **SMALL),
    "ast": on("features", (32, 16), "AutoModelForAudioClassification", "audio-spectrogram-transformer", max_length=32, num_mel_bins=16,
              patch_size=8, frequency_stride=8, time_stride=8, **SMALL),
    "videomae": on("video", (4, 3, 32, 32), "AutoModelForVideoClassification", "videomae", image_size=32, patch_size=8, num_frames=4,
                   tubelet_size=2, **SMALL),
    "mae": masked_autoencoder,
    "clip": two_towers,
})
MODELS.update({f"timm:{name}": timm_model(name) for name in (
    "resnet10t resnet26d seresnet50 res2net50_26w_4s resnest14d skresnet18 ecaresnet26t resnetv2_50 dla34 dpn48b densenet121 vgg11_bn "
    "mobilenetv3_small_050 mobilenetv4_conv_small ghostnet_100 mixnet_s nfnet_f0 convnext_atto mambaout_femto").split()})
MODELS.update({f"timm:{name}": timm_model(name, img_size=64) for name in (
    "vit_tiny_patch16_224 mixer_s16_224 xcit_nano_12_p16_224 swin_tiny_patch4_window7_224").split()})


def without_chance(model):
    for module in model.modules():
        if "Dropout" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for name in ("dropout_p", "attention_dropout", "attn_dropout", "dropout", "activation_dropout", "dropout_prob", "hidden_dropout", "drop_prob", "drop_rate",
                     "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(next((line for line in lines if "error:" in line), lines[0]))


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "minibatch" in line]


def largest_difference(expected, got):
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(expected, got, strict=True))


def train_in_python(model, data, batch, microbatches):
    """Losses of STEPS updates, each of so many minibatches: of their mean gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for k in range(STEPS * microbatches):
        loss = model(*[tensor[k * batch:(k + 1) * batch].clone() for tensor in data.values()])[0]
        if k % microbatches == 0:
            optimizer.zero_grad()
        (loss / microbatches).backward()
        if k % microbatches == microbatches - 1:
            optimizer.step()
        losses.append(loss.item())
    return losses


# Each with the numbers of minibatches an update that it can have. What they compute is what one device does.
SCHEDULES = {"gpipe": ("flush", (1, 2)), "1f1b-flush": ("flush", (1, 2)), "zb-h1": ("flush", (1, 2)), "interleaved": ("flush", (2,)),
             "model-parallel": ("stash", (1,))}


def cuts_of(graph):
    """Numbers of nodes that may stand before a cut: no set of nodes that share memory is parted."""
    place = {node["name"]: k for k, node in enumerate(graph["nodes"])}
    parted = set()
    for names in graph.get("together", []):
        places = [place[name] for name in names]
        parted.update(range(min(places) + 1, max(places) + 1))
    return [k for k in range(1, len(place)) if k not in parted]


def tensors_in(arguments):
    for argument in arguments.values():
        if isinstance(argument, dict):
            yield from [argument["tensor"]] if "tensor" in argument else argument.get("tensors", [])


def random_plan(draw, graph, schedule):
    weights, microbatches = SCHEDULES[schedule]
    microbatches = draw.choice(microbatches)
    stages = 4 if schedule == "interleaved" else draw.choice((2, 3, 4))  # two on each of two ranks
    cuts = cuts_of(graph)
    stages = min(stages, len(cuts) + 1)
    ends = [*sorted(draw.sample(cuts, stages - 1)), len(graph["nodes"])]
    ranks = list(range(2 if schedule == "interleaved" else stages))
    draw.shuffle(ranks)
    plan = {"schema": "pipewright.plan/1", "model": graph["name"], "strategy": "manual", "schedule": schedule, "weights": weights,
            "microbatches": microbatches, "world_size": len(ranks), "stages": []}
    readers = {}
    for stage, (begin, end) in enumerate(zip([0, *ends], ends)):
        nodes = graph["nodes"][begin:end]
        depth = microbatches if schedule != "1f1b-flush" else draw.randint(1, min(microbatches, stages - stage))
        plan["stages"].append({"nodes": [node["name"] for node in nodes], "ranks": [ranks[stage % len(ranks)]], "in_flight": depth,
                               "recompute": draw.random() < 0.2})
        for node in nodes:
            for name in tensors_in(node["arguments"]):
                readers.setdefault(name, set()).add(stage)
    plan["tied_parameters"] = [{"name": one["name"], "stages": sorted(readers[one["name"]])} for one in graph["parameters"]
                               if len(readers.get(one["name"], ())) > 1]
    return plan


def require_memory(model):
    """Of PyTorch's model, its export and the pipelines: 20 GB were seen with 2.5 GB of weights."""
    needed = 8 * sum(parameter.nbytes for parameter in model.parameters())
    available = next(1024 * int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    if needed > available:
        raise RuntimeError(f"takes about {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are free")


def compare(name, programs, folder, batch, load):
    """Operators, parameters, a loss, and how far one device and each plan are off; with `load` nothing: it has been exported and
    loaded."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, fields = MODELS[name]()
    require_memory(model)
    data = {name: draw(2 * batch * STEPS) for name, draw in fields.items()}
    save_file({name: tensor.clone() for name, tensor in data.items()}, folder / "data.safetensors")
    first = {name: tensor[:batch] for name, tensor in data.items()}
    model = without_chance(model).train()
    if "labels" in fields:  # the others have a loss of their own
        model = exporting.with_loss(model, "cross_entropy", first)
    program = exporting.export(model, first, folder / "model.pt2")
    if load:
        run(programs / "pipewright-profiler", "graph", "--model", folder / "model.pt2", "--batch-size", batch)
        return None
    operators = sum(node.op == "call_function" for node in program.graph.nodes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    del program

    what = ["--model", folder / "model.pt2", "--batch-size", batch]
    how = ["--data", f"tensors:file={folder / 'data.safetensors'}", "--learning-rate", RATE]
    run(programs / "pipewright-profiler", "graph", *what, "--output", folder / "graph.json")
    graph = json.loads((folder / "graph.json").read_text())
    draw = random.Random(name)
    drawn = [random_plan(draw, graph, schedule) for schedule in draw.sample(list(SCHEDULES), len(SCHEDULES))]
    # A parameter that several stages read needs updates at the same time.
    plans = [plan for plan in drawn if plan["weights"] == "flush" or not plan["tied_parameters"]][:3]

    expected, one = {}, {}  # losses, by minibatches an update
    for microbatches in sorted({plan["microbatches"] for plan in plans}):
        with exporting.unchanged(model):
            expected[microbatches] = train_in_python(model, data, batch, microbatches)
        output = folder / f"one{microbatches}"
        run(programs / "pipewright-runtime", "train", *what, *how, "--minibatches", STEPS * microbatches, "--gradient-accumulation",
            microbatches, "--no-save", "--output", output)
        one[microbatches] = losses_of(output)
    del model

    differences = [max(largest_difference(expected[count], one[count]) for count in one)]
    for k, plan in enumerate(plans):
        file, count = folder / f"plan{k}.json", plan["microbatches"]
        file.write_text(json.dumps(plan))
        words = [*what, *how, "--minibatches", STEPS * count, "--plan", file]
        shape = f"{len(plan['stages'])} stages, {plan['schedule']}, {count} an update"
        try:
            run(programs / "pipewright-runtime", "launch", "--timeout", "600s", *words, "--no-save", "--output", folder / f"run{k}")
            difference = largest_difference(one[count], losses_of(folder / f"run{k}"))
            if difference > 1e-6:
                run(programs / "pipewright-runtime", "verify", "--timeout", "600s", *words)
        except Exception as error:
            raise RuntimeError(f"{shape}: {error}") from error
        differences.append((shape, difference))
    return operators, parameters, expected[min(expected)][STEPS - 1], differences


HEADER = ("| model | parameters | operators | a loss | one device, from PyTorch | plans: stages, schedule, minibatches an update, from one device "
          "|\n| --- | --- | --- | --- | --- | --- |")


def number(difference):
    return f"{difference:.1e}" + (" (rounding)" if difference > 1e-6 else "") if difference else "0"


def row_of(name, programs, batch, load):
    """The table's row, a line for people, and whether the losses are equal."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            compared = compare(name, programs, pathlib.Path(folder), batch, load)
        except Exception as error:  # the table goes on
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"| {name} | not compared: {reason} | | | | |", f"{name:22} not compared: {reason}", False
    if compared is None:
        return "", f"{name:22} loads", True
    operators, parameters, loss, (device, *plans) = compared
    equal = device <= 1e-4  # of the others verify has said so
    texts = "; ".join(f"{shape}: {number(difference)}" for shape, difference in plans)
    return (f"| {name} | {parameters:,} | {operators} | {loss:.5f} | {number(device)} | {texts} |",
            f"{name:22} {operators:5} operators  a loss {loss:.5f}  one device {number(device)}; {texts}  {'ok' if equal else 'DIFFERS'}",
            equal)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--all", action="store_true", help="every model that this script knows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="models at a time")
    parser.add_argument("--output", type=pathlib.Path, help="the table, as Markdown")
    parser.add_argument("--load", action="store_true", help="only export them and load the file: seconds each")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MODELS]
    if unknown:
        sys.exit(f"compare_models: error: no model '{unknown[0]}' here; nearest: {', '.join(difflib.get_close_matches(unknown[0], MODELS, 3, 0))}")
    names = arguments.names or (MODELS if arguments.all else USUAL)
    servers = multiprocessing.get_context("forkserver")
    servers.set_forkserver_preload([library for library in ("torchvision", "transformers", "timm") if importlib.util.find_spec(library)])
    rows, failed = [HEADER], 0
    for some, jobs in (([name for name in names if name not in LARGE], arguments.jobs), ([name for name in names if name in LARGE], 1)):
        # Each model in a process of its own: the first weights depend on PyTorch's one random generator.
        with concurrent.futures.ProcessPoolExecutor(jobs, servers, max_tasks_per_child=1) as pool:
            for row, line, equal in pool.map(row_of, some, itertools.repeat(arguments.programs), itertools.repeat(arguments.batch_size),
                                             itertools.repeat(arguments.load)):
                rows.append(row)
                print(line, flush=True)
                failed += not equal
                if arguments.output:
                    arguments.output.write_text("\n".join(rows) + "\n")
    print(f"{len(rows) - 1 - failed} of {len(rows) - 1} models {'load' if arguments.load else 'equal'}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
