"""Plain copies in compiled programs: `b.copy_(a)` has to keep what `a` held then, whatever is written to `a` later.

The inductor takes a copy of an input for the input itself, and writes all mutated inputs at a program's end. So `b`
gets what `a` holds at the end where `a` is among those and comes first (seen with torch 2.13: `b.copy_(a)`, then
`a.copy_(torch.where(mask, 0.0, a))`). A tick is made of such steps. Here each plain copy is given a value of its own,
by an operation that changes nothing and that no pass of the compiler takes out.
"""

import operator

import torch
from torch.fx import GraphModule, Node

# What may return its first argument itself, or a view of it.
_ALIASES = frozenset(
    (
        *("alias", "as_strided", "clone", "contiguous", "data", "detach", "diagonal", "expand", "expand_as", "flatten"),
        *(
            "float",
            "double",
            "long",
            "int",
            "bool",
            "narrow",
            "permute",
            "ravel",
            "reshape",
            "requires_grad_",
            "select",
        ),
        *("split", "chunk", "squeeze", "swapaxes", "t", "to", "transpose", "type", "type_as", "unbind", "unflatten"),
        *("unsqueeze", "view", "view_as", "movedim", "T", "mT", "cat", "getitem", "getattr"),
    )
)


def keep_plain_copies(module: GraphModule) -> int:
    """Give every plain copy of an input in a graph as traced by torch a value of its own; returns how many there were.

    Args:
        module: changed in place; its in-place operations are still in it.
    """
    graph, found = module.graph, 0
    for node in list(graph.nodes):
        place = _source_of(node)
        if place is None:
            continue
        source = node.args[place]
        if not isinstance(source, Node) or not _is_input(source):
            continue
        with graph.inserting_before(node):
            # Of both values the greater: the same bits, NaN and -0.0 too, for every type that has an order.
            kept = graph.call_function(torch.maximum, (source, source))
        kept.meta = {key: value for key, value in source.meta.items() if key in ("stack_trace", "example_value")}
        arguments = list(node.args)
        arguments[place] = kept
        node.args = tuple(arguments)
        found += 1
    if found:
        module.recompile()
    return found


def _source_of(node: Node) -> int | None:
    """Return which argument of a node is copied as it is, or None where it copies none."""
    if node.op == "call_method" and node.target == "copy_":
        return 1
    if node.op == "call_function" and node.target is operator.setitem:
        return 2
    return None


def _is_input(node: Node) -> bool:
    """Return whether a value is an input of the program or a view of one, and not computed."""
    while node.op in ("call_method", "call_function"):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name not in _ALIASES or not node.args:
            return False
        first = node.args[0]
        if isinstance(first, list | tuple) and len(first) == 1:
            first = first[0]
        if not isinstance(first, Node):
            return False
        node = first
    return node.op in ("placeholder", "get_attr")
