"""Exports a PyTorch model, with its loss, as a file that Pipewright trains: docs/bring-your-own-model.md. Needs torch, 2.9 or later.

A function of your own, `module:function` or `file.py:function`, returns the model, or the model and its example inputs: a dict of tensors by
the names of the forward's arguments, or by other names in the order of these. Modules stay in the mode, train or eval, that they are in; a
model that is wholly in eval mode is put into train mode.
"""
import collections
import contextlib
import copy
import importlib
import inspect
import io
import json
import os
import sys
import traceback
import types
import warnings

from pipewright.documents import Exported
from pipewright.errors import Error, nearest
from pipewright.tokens import is_saved

try:
    import torch
except ImportError:
    raise Error(f"this Python, {sys.executable}, has no torch", "pip install torch==2.11.*, or run this with a Python that has it.") from None


def fail(message, remedy=""):
    raise Error(message, remedy)


def say(message):
    print(f"pipewright: {message}", file=sys.stderr)


def parsed(text):
    """The value of an option: a number, true, false, or the text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def scores_of(output):
    """The tensor of a model's output that a loss looks at: libraries hand out objects and dicts, too."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, (tuple, list)) and output:
        return scores_of(output[0])
    named = dict(output.items()) if hasattr(output, "items") else {}
    for name in ("logits", "out"):  # transformers; torchvision's segmentation
        if isinstance(named.get(name), torch.Tensor):
            return named[name]
    fail(f"the model's output is a {type(output).__name__}" + (f" of {', '.join(named)}" if named else ""),
         "Give the module:function of a model that returns its loss, or its scores.")


def cross_entropy(output, labels):
    scores = scores_of(output)
    if labels.shape != scores.shape[:-1] and labels.shape == scores.shape[:1] + scores.shape[2:]:
        return torch.nn.functional.cross_entropy(scores, labels), scores  # a class for each pixel
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten()), scores


def mse(output, targets):
    prediction = scores_of(output)
    return torch.nn.functional.mse_loss(prediction, targets), prediction


LOSSES = {"cross_entropy": cross_entropy, "mse": mse}


def with_loss(model, loss, inputs):
    """The model takes `inputs` by these names, the last of them labels, and returns the loss and the scores.

    The forward of the object is replaced, instead of another module put around it: names of parameters and layers stay
    those of the model."""
    names = list(inputs)
    forward = model.forward

    def forward_with_loss(self, *fields):
        output = forward(*fields[:-1])
        return LOSSES[loss](output, fields[-1])

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ["self", *names]]
    forward_with_loss.__signature__ = inspect.Signature(parameters)
    model.forward = types.MethodType(forward_with_loss, model)
    return model


def with_forward(model, change):
    """The model hands out `change` of its output; its arguments stay."""
    forward = model.forward

    def changed(self, *fields, **named):
        return change(forward(*fields, **named))

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *inspect.signature(forward).parameters.values()]
    changed.__signature__ = inspect.Signature(parameters)
    model.forward = types.MethodType(changed, model)
    return model


def bound(model, inputs):
    """The inputs as the forward takes them: those before the first that is not in its place, and the others by name. Names that are
    all arguments of the forward say where they go; names of fields that are none go in the order in which they stand."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(model.forward).parameters
    names = [name for name, one in parameters.items() if one.kind in kinds]
    positional = [name for name in names if parameters[name].kind is kinds[0]]
    known = [name for name in inputs if name in names]
    if len(known) < len(inputs):
        for place, name in enumerate(inputs):
            if name in names and positional[place:place + 1] != [name]:
                fail(f"example input {place}, '{name}', is another argument of the forward, which takes {', '.join(names)}",
                     "Name all of them as the forward does, or none.")
        return inputs, {}
    ordered = {name: inputs[name] for name in names if name in inputs}
    count = next((place for place, name in enumerate(ordered) if positional[place:place + 1] != [name]), len(ordered))
    return dict(list(ordered.items())[:count]), dict(list(ordered.items())[count:])


def leaves_of(output):
    return torch.utils._pytree.tree_leaves(output)


def is_plain(output):
    """Tensors, and beside them None and numbers, in tuples, lists and dicts within these."""
    leaves = leaves_of(output)
    return (isinstance(output, (torch.Tensor, tuple, list)) and any(isinstance(one, torch.Tensor) for one in leaves)
            and all(one is None or isinstance(one, (torch.Tensor, bool, int, float)) for one in leaves))


def plain(output):
    """What a program can hand out. Of an object or a dict its loss and its scores."""
    if is_plain(output):
        return output
    if isinstance(output, (tuple, list)):
        tensors = tuple(one for one in output if isinstance(one, torch.Tensor))
        if tensors:
            return tensors
    named = dict(output.items()) if hasattr(output, "items") else {}
    if isinstance(named.get("loss"), torch.Tensor):
        return tuple(named[name] for name in ("loss", "logits") if isinstance(named.get(name), torch.Tensor))
    holds = f" with {', '.join(map(str, named))}" if named else ""
    fail(f"the model's forward returns a {type(output).__name__}{holds}; expected a tensor, a tuple of tensors, or a dict with 'loss'",
         "Return the loss, or (loss, scores).")


def installed(library):
    try:
        return importlib.import_module(library)
    except ImportError as error:
        fail(f"{library} cannot be imported: {first_line(error)}", f"pip install {library}")


def first_line(error):
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def place_of(error):
    """Where in the model's own code: of the innermost call that is neither PyTorch's nor ours."""
    library = os.path.dirname(torch.__file__) + os.sep
    standard = os.path.dirname(os.__file__) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        ours = frame.filename == __file__ or frame.filename.startswith((library, "<"))
        if not ours and (not frame.filename.startswith(standard) or "-packages" in frame.filename):
            return f", at {os.path.basename(frame.filename)}:{frame.lineno}, {frame.line}"
    return ""


@contextlib.contextmanager
def quiet():
    """Without what PyTorch prints of an error that is told in one line."""
    import logging

    loggers = [logging.getLogger(name) for name in ("torch", "torch.fx", "torch._subclasses", "torch._subclasses.fake_tensor", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


# What torch.export says, and the likely way out.
EXPORT_REMEDIES = (
    ("data-dependent", "Which operators run must not depend on the values of tensors: write torch.where for an if, and masks for loops."),
    ("numpy", "Compute with torch instead of numpy in the forward."),
    ("Constraints violated", "The number of samples is fixed by the model: export without --dynamic-batch."),
    ("specialized", "The number of samples is fixed by the model: export without --dynamic-batch."),
)
EXPORT_REMEDY = "torch.export has to take the model: leave out of its forward what is no operator of PyTorch."
SUB_GRAPHS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def refuse_operators(module):
    """What Pipewright could not run, said before the file is made."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        place = f"operator '{node.target}'" + (f" in module '{stack[-1][0]}'" if stack and stack[-1][0] else "")
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            if node.target.name() not in SUB_GRAPHS:
                fail(f"{place}: control flow and operators of Python cannot run without Python",
                     "Which operators run must be the same for every input: write torch.where for torch.cond.")
        elif isinstance(node.target, torch._ops.OpOverload) and node.target.namespace != "aten":
            fail(f"{place} is none of PyTorch's own; LibTorch does not have it",
                 "Write it with PyTorch's operators, or choose the implementation of the model that has none of its own.")
        made = node.meta.get("val")
        computed = [given for given in node.all_input_nodes if isinstance(given.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))]
        makes_tensors = isinstance(made, torch.Tensor) or isinstance(made, (tuple, list))
        if makes_tensors and (free_unbacked_symbols(made) or any(free_unbacked_symbols(given.meta["val"]) for given in computed)):
            fail(f"{place} depends on a number that is read from a tensor, or makes a size that depends on values",
                 "Write the model without .item(), .tolist(), nonzero() and x[mask]; multiply by a mask, or use torch.where.")
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            refuse_operators(child)


def loaded(kind, folder, config):
    """With the weights of a folder; those of another shape, or that it has not, start anew."""
    model, told = kind.from_pretrained(folder, config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    anew = [*told["missing_keys"], *(one if isinstance(one, str) else one[0] for one in told["mismatched_keys"])]
    if anew:
        say(f"not in {folder}, so they start anew: {', '.join(sorted(anew))}")
    return model


TRAINED = "SequenceClassification ImageClassification VideoClassification AudioClassification".split()


def transformers_model(name, options, classes, pretrained=False):
    """By the type of a configuration (gpt2, t5, vit) with first weights, or a folder or name that from_pretrained takes, with the head
    that it was saved with; with classes, a classifier of so many. `pretrained`: the name is one that from_pretrained takes."""
    transformers = installed("transformers")
    saved = pretrained or is_saved(name)
    if os.path.isdir(name) and (saved or name not in transformers.CONFIG_MAPPING) and not os.path.exists(os.path.join(name, "config.json")):
        fail(f"{name} has no config.json", "Give a folder that save_pretrained() has written.")
    if saved:
        config = transformers.AutoConfig.from_pretrained(name, **options)
    elif name in transformers.CONFIG_MAPPING:
        config = transformers.AutoConfig.for_model(name, **options)
    else:
        fail(f"transformers has no model type '{name}'",
             nearest(name, transformers.CONFIG_MAPPING.keys()) or "Give a type, or a folder that save_pretrained() has written.")
    config.use_cache = False
    config._experts_implementation = "batched_mm"  # the others are operators of transformers
    if classes is not None:
        config.num_labels = classes
    if saved and classes is None:
        named = (config.architectures or ["none"])[0]
        if not hasattr(transformers, named):
            fail(f"{name} does not say which class of transformers it is: its config.json has architectures {named}",
                 "--classes N makes it a classifier.")
        return loaded(getattr(transformers, named), name, config)
    type_of = config.model_type
    language = (["Seq2SeqLM"] if config.is_encoder_decoder else
                ["MaskedLM", "CausalLM"] if type_of.startswith("bert") else ["CausalLM", "MaskedLM"])
    for head in TRAINED if classes is not None else [*language, *TRAINED[1:]]:
        kind = getattr(transformers, f"AutoModelFor{head}")
        if type(config) not in kind._model_mapping:
            continue
        if head == "SequenceClassification" and config.is_encoder_decoder:
            fail(f"transformers' '{type_of}' classifies by tokens that end a text, which example inputs have not",
                 "Give the module:function of one that makes your model and its example inputs.")
        if head == "SequenceClassification" and config.pad_token_id is None:
            config.pad_token_id = 0
            say("pad_token_id is 0 (--option pad_token_id=N): a decoder classifies by the last token that is another")
        return loaded(kind, name, config) if saved else kind.from_config(config)
    if classes is not None:
        fail(f"transformers' '{type_of}' has no classifier of texts, images, video or audio", "Leave out --classes.")
    fail(f"transformers' '{type_of}' is neither a language model nor a classifier of images, video or audio",
         "Give the module:function of one that makes your model and its example inputs.")


def module_of(library):
    """Where to look for a module of one's own, and its name: `my_models`, or as a file, `folder/my_models.py`."""
    folder, file = os.path.split(library)
    return os.path.abspath(folder or os.getcwd()), file.removesuffix(".py")


def find_model(source, options, classes, pretrained=False):
    """The model, and its example inputs if it brings them. `classes`: of its head; None: as its library has it. `pretrained`: with the weights
    that its library has for it."""
    library, _, name = source.partition(":")
    if not name:
        fail(f"'{source}' is no model", "Give torchvision:NAME, timm:NAME, transformers:TYPE, transformers:FOLDER or module:function.")
    if library in ("torchvision", "timm") and classes is not None:
        options = {"num_classes": classes, **options}
    if pretrained and library not in ("torchvision", "timm", "transformers"):
        fail(f"--pretrained: '{source}' is of no library that has weights for it", "Load them in the function.")
    if pretrained and library != "transformers":
        options = {**({"weights": "DEFAULT"} if library == "torchvision" else {"pretrained": True}), **options}
    try:
        if library == "torchvision":
            models = installed("torchvision").models
            if name.lower() not in models.list_models():
                fail(f"torchvision has no model '{name}'", nearest(name, models.list_models()))
            return models.get_model(name, **options), None
        if library == "timm":
            timm = installed("timm")
            if not timm.is_model(name):
                fail(f"timm has no model '{name}'", nearest(name, timm.list_models()))
            return timm.create_model(name, **options), None
        if library == "transformers":
            return transformers_model(name, options, classes, pretrained), None
        folder, library = module_of(library)
        sys.path.insert(0, folder)
        try:
            module = importlib.import_module(library)
        except ModuleNotFoundError as error:
            if error.name != library:
                raise
            fail(f"there is no module '{library}'" + (f" in {folder}" if folder != os.getcwd() else ""),
                 f"Run this where {library}.py is, or set PYTHONPATH.")
        if not callable(getattr(module, name, None)):
            fail(f"module '{library}' has no function '{name}'", nearest(name, vars(module)))
        made = getattr(module, name)(**options)
    except Error:
        raise
    except Exception as error:
        fail(f"'{source}' cannot be made: {type(error).__name__}: {first_line(error)}{place_of(error)}",
             "--pretrained needs the weights in the library's local cache, or a network that reaches them; without it the model has first values."
             if pretrained else
             "Look at the --option values." if options else
             "Give a folder that save_pretrained() has written." if library == "transformers" and "/" in name else "")
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        fail(f"'{source}' returns a {type(made).__name__}; expected a torch.nn.Module, or a module and its example inputs")
    if inputs is not None:
        if not isinstance(inputs, dict) or not inputs or not all(isinstance(one, torch.Tensor) for one in inputs.values()):
            fail(f"the example inputs of '{source}' are a {type(inputs).__name__}; expected a dict of tensors",
                 'Return them by the names of your fields, in the order of the arguments: {"images": ..., "labels": ...}.')
        sizes = {name: one.shape[0] if one.dim() else 0 for name, one in inputs.items()}
        if len(set(sizes.values())) > 1:
            fail("the example inputs differ in dimension 0, the samples: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
    return model, inputs


def example_inputs(arguments, model):
    """By the names of the fields of Pipewright's data sets."""
    generator = torch.Generator().manual_seed(0)
    batch = arguments.batch_size

    def numbers_below(end, *shape):
        return torch.randint(0, end, shape, generator=generator)

    field = getattr(model, "main_input_name", None)  # transformers
    forward = model.forward
    if field == "input_ids":
        texts = model.config.get_text_config()
        tokens = numbers_below(texts.vocab_size, batch, arguments.tokens)
        if model.config.is_encoder_decoder and type(model).__name__.endswith("ForConditionalGeneration"):
            model.forward = lambda source, target: forward(input_ids=source, decoder_input_ids=target)
            return {"source": tokens, "target": tokens.clone(), "labels": tokens.clone()}
        model.forward = lambda tokens: forward(input_ids=tokens)
        if type(model).__name__.endswith("ForSequenceClassification"):
            return {"tokens": tokens, "labels": numbers_below(model.config.num_labels, batch)}
        if type(model).__name__.endswith("ForTokenClassification"):
            return {"tokens": tokens, "labels": numbers_below(model.config.num_labels, batch, arguments.tokens)}
        return {"tokens": tokens, "labels": tokens.clone()}
    if field not in (None, "pixel_values"):
        fail(f"the model reads '{field}', whose shape is not known",
             "Give the module:function of one that makes the model and its example inputs.")
    if field is not None:
        model.forward = lambda images: forward(pixel_values=images)
    classes = arguments.classes or getattr(model, "num_classes", None) or getattr(getattr(model, "config", None), "num_labels", 1000)
    images = torch.randn(batch, arguments.channels, arguments.image, arguments.image, generator=generator)
    return {"images": images, "labels": numbers_below(classes, batch)}


def call(model, inputs):
    """Its output for copies of the inputs: a forward may write into them."""
    given, named = bound(model, {name: tensor.clone() for name, tensor in inputs.items()})
    return model(*given.values(), **named)


def run_once(model, inputs):
    """The model's output, or what is wrong with its inputs."""
    try:
        return call(model, inputs)
    except Error:
        raise
    except Exception as error:
        given = ", ".join(f"{name} {str(one.dtype).replace('torch.', '')} {tuple(one.shape)}" for name, one in inputs.items())
        wanted = "as many, in the order of the forward's arguments" if isinstance(error, TypeError) else "what the model reads"
        fail(f"the model does not run on its example inputs ({given}): {first_line(error)}{place_of(error)}",
             f"Example inputs have to be {wanted}: --image, --channels, --tokens, --classes, or those that your function returns.")


def compare_gradients(model, loss, again, loss_again, tolerance):
    """A program has the operators of the forward: an autograd.Function's own backward, or a hook, would be lost."""
    try:
        loss.backward()
    except RuntimeError as error:
        fail(f"the model cannot be trained, in PyTorch neither: {first_line(error)}", "Does a detach() or a no_grad() part the loss from the weights?")
    if loss_again.requires_grad:  # else no gradient is left, which is told below
        loss_again.backward()
    theirs = dict(again.named_parameters(remove_duplicate=False))
    names = {}  # of each parameter: a tied one has several, and there it may be several parameters
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, tied in names.items():
        name = tied[0]
        found = {id(theirs[one]): theirs[one].grad for one in tied if one in theirs}
        parts = [gradient for gradient in found.values() if gradient is not None]
        expected, got = parameter.grad, sum(parts[1:], parts[0]) if parts else None
        if expected is None and got is None:
            continue
        if expected is not None and not expected.isfinite().all():
            say(f"the gradient of '{name}' is not finite on the example inputs, and was not compared with the exported program's: give inputs "
                "of which it is")
            continue
        if expected is None or got is None or not torch.allclose(expected, got, rtol=tolerance, atol=tolerance * expected.abs().max().item()):
            fail(f"the gradient of '{name}' is another one in the exported program than in the model",
                 "torch.export keeps no backward of an autograd.Function, no hooks, and no torch.no_grad() inside torch.autocast: write detach().")
    model.zero_grad()


def graphs_of(program):
    """The program's modules that have a graph: sub-graphs too."""
    return [module for module in program.graph_module.modules() if isinstance(getattr(module, "graph", None), torch.fx.Graph)]


def writes(graph):
    return any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in graph.nodes)


def written(node):
    """The tensor that a chain of operators in place has written: of `x.add_(1).mul_(2)` x."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith("_") and node.args:
        node = node.args[0]
    return node


def mend(program):
    """What PyTorch 2.11 writes into a file and cannot read again, or not train: uniform_() without its bounds, parts without
    gradients of which nothing is used, and the copy of a buffer onto itself behind `self.count += 1`."""
    for module in graphs_of(program):
        for node in list(module.graph.nodes):
            if node.target is torch.ops.aten.uniform_.default and len(node.args) == 1 and not node.kwargs:
                node.args = (node.args[0], 0.0, 1.0)
            if node.target is torch.ops.aten.copy_.default and written(node.args[1]) is node.args[0]:
                node.replace_all_uses_with(node.args[1])
                module.graph.erase_node(node)
            if str(node.target) == "wrap_with_set_grad_enabled" and node.meta.get("val") == () and not node.users:
                if not writes(getattr(module, node.args[1].target).graph):
                    module.graph.erase_node(node)


@contextlib.contextmanager
def unchanged(model):
    """What running the model changes is put back: all tensors and other attributes of its modules, saved in a state_dict or not, lists
    and dicts among them, and PyTorch's generator."""
    tensors, places = {}, []
    for module in model.modules():
        for held in (module.__dict__, *module.__dict__.values()):
            if type(held) not in (dict, collections.OrderedDict, list):
                continue
            places.append((held, copy.copy(held)))
            values = held if isinstance(held, list) else held.values()
            tensors.update((id(one), one) for one in values if isinstance(one, torch.Tensor))
    kept = [(one, one.detach().clone()) for one in tensors.values()]
    generator = torch.get_rng_state()
    try:
        yield
    finally:
        for held, before in places:
            held.clear()
            held.extend(before) if isinstance(held, list) else held.update(before)
        with torch.no_grad():
            for one, before in kept:
                if not torch.equal(one, before):
                    one.detach().copy_(before)
        torch.set_rng_state(generator)


def in_training(model):
    """The model as it is to be trained: each module in the mode that it came in, so that a frozen batch norm stays one. What is
    wholly in evaluation mode, as from_pretrained() leaves it, is put into training mode."""
    if not any(module.training for module in model.modules()):
        say("the model came in evaluation mode and is exported in training mode; modules that stay in evaluation mode: eval() these "
            "alone, of a model in training mode")
        model.train()
    return model


def export(model, inputs, output, dynamic_batch=False):
    """Exports `model`, which takes `inputs` and returns its loss, and checks that the file, read again, computes the same. Returns the program.

    `inputs`: dict of tensors, dimension 0 the batch."""
    model = in_training(model)
    if any(torch.nn.parameter.is_lazy(one) for one in model.parameters()):
        run_once(model, inputs)  # makes the parameters: what follows trains these
    with unchanged(model):
        once = run_once(model, inputs)
    if not is_plain(once):
        plain(once)
        model = with_forward(model, plain)
    given, named = bound(model, inputs)
    dynamic = None
    if dynamic_batch:
        batch = torch.export.Dim("batch", min=2)
        dynamic = {name: {0: batch} for name in {**given, **named}} if named else tuple({0: batch} for _ in given)
    try:
        with quiet():
            program = torch.export.export(model, tuple(given.values()), named or None, dynamic_shapes=dynamic)
    except Exception as error:
        remedy = next((remedy for words, remedy in EXPORT_REMEDIES if words in str(error)), EXPORT_REMEDY)
        fail(f"torch.export does not take the model: {first_line(error)}{place_of(error)}", remedy)
    refuse_operators(program.graph_module)
    mend(program)
    for module in graphs_of(program):
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)  # most of a small file, and paths of this machine
    try:
        torch.export.save(program, output)
    except (OSError, RuntimeError) as error:
        fail(f"{output} cannot be written: {first_line(error)}", "--output names a file in a folder that is there.")
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = torch.export.load(output).module()
    except Exception as error:
        os.unlink(output)
        cause = error.__context__ if error.__context__ is not None else error
        if "wrap_with_set_grad_enabled" in str(cause):
            fail("PyTorch cannot read the file again that it has written: of the model's torch.no_grad() nothing comes out but a buffer that is written",
                 "Write with detach() in place of torch.no_grad(): self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1).")
        fail(f"PyTorch cannot read the file again that it has written: {first_line(cause)}",
             "Leave out of the forward what it names, or write it otherwise.")

    def outputs(module, samples=None):
        torch.manual_seed(0)
        result = module(*(one[:samples].clone() for one in given.values()), **{name: one[:samples].clone() for name, one in named.items()})
        return [one for one in leaves_of(result) if isinstance(one, torch.Tensor)]

    with unchanged(model):
        check_program(model, again, outputs)
        if dynamic_batch:
            check_one_sample(model, again, outputs)
    return program


def is_same(one, other):
    numbers = one.is_floating_point() or one.is_complex()
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True) if numbers else torch.equal(one, other)


def check_one_sample(model, again, outputs):
    """torch.export takes what the forward does with several samples for what it does with one."""
    try:
        expected, got, several = outputs(model, 1), outputs(again, 1), outputs(again)
    except Exception:  # a batch norm does not take one either
        return
    for one, other, more in zip(expected, got, several):
        if one.dim() != more.dim():
            what = f"an output has the shape {tuple(one.shape)}, of several {tuple(more.shape)}: squeeze() takes all dimensions of one"
        elif one.numel() != other.numel() or not is_same(one.flatten(), other.flatten()):
            what = (f"the exported program computes {other.flatten()[:3].tolist()}, the model {one.flatten()[:3].tolist()}: torch.export keeps only what "
                    "the forward does with several, whatever shape[0] is")
        else:
            continue
        say(f"of a minibatch of one sample {what}. Take no minibatch of one, in evaluation neither, or write the forward otherwise")
        return


def check_program(model, again, outputs):
    """The program computes what the model does, and its gradients, if it has a loss: the first output of one element."""
    expected, got = outputs(model), outputs(again)
    for one, other in zip(expected, got, strict=True):
        if not is_same(one, other):
            fail(f"the exported program computes {other.flatten()[:3].tolist()}, the model {one.flatten()[:3].tolist()}",
                 "The model's forward depends on more than its inputs and weights.")
    losses = [pair for k, pair in enumerate(zip(expected, got)) if pair[0].numel() == 1 and (k == 0 or pair[0].requires_grad)]
    if losses:
        # A weight that is read twice under autocast has its gradient rounded once or twice.
        bfloat16 = any("wrap_with_autocast" in str(node.target) for graph in (again, *again.children()) if hasattr(graph, "graph") for node in graph.graph.nodes)
        compare_gradients(model, losses[0][0], again, losses[0][1], 3e-2 if bfloat16 else 1e-3)


def exported(model, inputs, output, program, source):
    """What has been written: the document of `pipewright export --json`."""
    config = getattr(model, "config", None)
    kept = None
    if hasattr(config, "to_diff_dict"):  # transformers'
        kept = json.loads(config.to_json_string())
        kept.update(architectures=[type(model).__name__], use_cache=True)
        kept.pop("_experts_implementation", None)
    return Exported(
        file=os.fspath(output), model=source, type=type(model).__name__, parameters=sum(one.numel() for one in model.parameters()),
        operators=sum(node.op == "call_function" for node in program.graph.nodes), file_bytes=os.path.getsize(output),
        batch_size=next(iter(inputs.values())).shape[0], inputs={name: f"{str(one.dtype).replace('torch.', '')} {tuple(one.shape)}" for name, one in inputs.items()},
        gpus=torch.cuda.device_count(), evaluating=tuple(name for name, module in model.named_modules() if not module.training), config=kept)


@contextlib.contextmanager
def as_it_was(model):
    """The forward and the modes of the model's modules are put back."""
    modes = [(module, module.training) for module in model.modules()]
    forward = model.__dict__.get("forward")
    try:
        yield
    finally:
        model.__dict__.pop("forward", None)
        if forward is not None:
            model.forward = forward
        for module, training in modes:
            module.training = training


def options_of(words):
    """Arguments of the model from words NAME=VALUE."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            fail(f"--option {word}: expected NAME=VALUE")
        options[name] = parsed(value)
    return options


def run(arguments):
    """`pipewright export`: `arguments` as command_line.add_model_options has them. Returns the document."""
    options = options_of(arguments.option)
    for name in ("num_classes", "num_labels"):
        if options.get(name, arguments.classes) != arguments.classes and arguments.classes is not None:
            fail(f"--classes {arguments.classes} and --option {name}={options[name]} say different things", "Give one of them.")
        arguments.classes = arguments.classes or options.get(name)

    torch.manual_seed(arguments.seed)
    model, inputs = find_model(arguments.model, options, arguments.classes, arguments.pretrained)
    if inputs is None:
        inputs = example_inputs(arguments, model)
        if arguments.loss == "none":
            inputs.pop("labels")
            model = with_forward(model, scores_of)
        else:
            model = with_loss(model, arguments.loss, inputs)
    try:
        program = export(model, inputs, arguments.output, arguments.dynamic_batch)
    except OSError as error:
        fail(f"{arguments.output} cannot be written: {first_line(error)}")
    return exported(model, inputs, arguments.output, program, arguments.model)
