"""Where a user of torch.distributed.pipelining would cut a model in two: three places, one after the other until a model trains."""
import operator

import torch
from torch.distributed.pipelining import SplitPoint

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList)


def entered(model, inputs):
    """(name, parameters of the modules entered before it, modules entered before it) of each module that the forward enters once, in their
    order."""
    names, order = {module: name for name, module in model.named_modules()}, []
    hooks = [module.register_forward_pre_hook(lambda module, _: order.append(module)) for module in names]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found, before, seen = [], 0, set()
    for place, module in enumerate(order):
        found.append((names[module], before, place))
        if module not in seen:
            seen.add(module)
            before += sum(one.numel() for one in module.parameters(recurse=False))
    return [one for one in found if order.count(model.get_submodule(one[0])) == 1], before, len(order)


def is_block(model, name):
    """A member of a list of modules, and of no other block: what its authors call a layer or a block."""
    above = name.split(".")[:-1]
    holders = [model.get_submodule(".".join(above[:depth])) for depth in range(len(above) + 1)]
    if type(holders[-1]) not in CONTAINERS or type(model.get_submodule(name)) in CONTAINERS:
        return False
    first = next(depth for depth, holder in enumerate(holders) if type(holder) in CONTAINERS)
    return all(type(holder) in CONTAINERS for holder in holders[first:])


def module_cuts(model, inputs):
    """(what it is, split_spec): before the block at which half of the parameters have been, and before the one at which half of the modules have."""
    found, parameters, modules = entered(model, inputs)
    inner = [one for one in found if one[0] and one[2] > 0 and 0 < one[1] < parameters]
    blocks = [one for one in inner if is_block(model, one[0])] or inner
    cuts = {}
    for what, key, total in (("half of the parameters", 1, parameters), ("half of the modules", 2, modules)):
        left = [one for one in blocks if one[0] not in cuts]
        if left:
            name = min(left, key=lambda one: abs(one[key] - total / 2))[0]
            cuts[name] = (f"before {name}, {what}", {"split_spec": {name: SplitPoint.BEGINNING}})
    return list(cuts.values())


def narrowest(traced):
    """A split_policy: in the middle third of the operators, where the fewest values cross; first of all none that PyTorch cannot send, which are
    inputs of the model, whole numbers and tensors with gaps."""
    nodes = list(traced.graph.nodes)
    place = {node: k for k, node in enumerate(nodes)}
    calls = [k for k, node in enumerate(nodes) if node.op == "call_function" and node.target is not operator.getitem]

    def cost(cut):
        crossing = [node for node in nodes[:cut] if node.op != "get_attr" and any(place[user] >= cut for user in node.users)]
        values = [node.meta.get("val") for node in crossing]
        refused = sum(node.op == "placeholder" or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.is_contiguous()
                      for node, value in zip(crossing, values))
        return refused, len(crossing), abs(cut - calls[len(calls) // 2])

    with traced.graph.inserting_before(nodes[min(calls[len(calls) // 3:2 * len(calls) // 3 + 1], key=cost)]):
        traced.graph.call_function(torch.ops.pippy._pipe_split.default)
    return traced


def cuts_of(model, inputs):
    return [*module_cuts(model, inputs), ("where the fewest values cross", {"split_policy": narrowest})]
