"""Look-ups: ops that read or write the elements of a table that an index selects.

A look-up reads and writes each row as often as it is indexed. Only sums of rows and of losses take FLOPs, one per
element.
"""

from __future__ import annotations

from trainyard.trace.flops.memory_bound import Formula, memory_bound_cost
from trainyard.trace.flops.operands import Cost, OpArguments, Tensor, UnknownOperand

ASSUMES_SMALL_INDEX = "the indices of an indexed tensor take far fewer bytes than its elements: lists are not recorded"


def _cost_lookup(row_dims: tuple[int, ...], table: Tensor, index: Tensor) -> Cost:
    """A look-up that reads elements with dims `row_dims` from a table and writes them to the result; `index` is
    read."""
    rows = Tensor(row_dims, table.format)
    return memory_bound_cost([rows, index], [rows], flops=0)


def _cost_embedding(args: OpArguments, in_place: bool) -> Cost:
    table, index = args["weight"], args["indices"]
    return _cost_lookup((*index.dims, *table.dims[1:]), table, index)


def _cost_index_select(args: OpArguments, in_place: bool) -> Cost:
    """index_select (self, dim, index): as many slices of `self` along `dim` as `index` has elements."""
    table, index, axis = args["self"], args["index"], args.int("dim")
    if not -len(table.dims) <= axis < len(table.dims):
        raise UnknownOperand
    dims = list(table.dims)
    dims[axis] = index.numel
    return _cost_lookup(tuple(dims), table, index)


def _cost_gather(args: OpArguments, in_place: bool) -> Cost:
    return _cost_lookup(args["index"].dims, args["self"], args["index"])


def _cost_embedding_backward(args: OpArguments, in_place: bool) -> Cost:
    """The gradients' rows; filling the table with zeros is another op."""
    gradient = args["grad_output"]
    return memory_bound_cost([gradient, args["indices"]], [gradient], flops=gradient.numel)


def _cost_embedding_bag(args: OpArguments, in_place: bool) -> Cost:
    """_embedding_bag: sums the rows of each bag.

    `offsets` has the position in `indices` of the first index of each bag, and with `include_last_offset` one more.
    """
    table, index, starts = args["weight"], args["indices"], args["offsets"]
    bags = starts.numel - args.flag("include_last_offset")
    rows, out = Tensor((index.numel, *table.dims[1:]), table.format), Tensor((bags, *table.dims[1:]), table.format)
    return memory_bound_cost([rows, index, starts], [out], flops=rows.numel)


def _cost_index(args: OpArguments, in_place: bool) -> Cost:
    """`index` (self, indices): reads the elements of the result, whose size its node in the backward pass shows."""
    result = args.result()
    return memory_bound_cost([result], [result], flops=0)._replace(assumes=ASSUMES_SMALL_INDEX)


def _cost_index_put(args: OpArguments, in_place: bool) -> Cost:
    """`index_put` (self, indices, values, accumulate): writes the values; an accumulating one also reads the
    elements that they are added to. `accumulate` counts as False if the file has no values of flags. `in_place` is
    ignored: out of place, another op copies `self`."""
    self, values = args[0], args[2]
    if values.numel == 1:  # one value for all indexed elements, whose number is not recorded
        raise UnknownOperand
    accumulates = args.flag(3) if args.has_values else False
    read = [values, *([Tensor(values.dims, self.format)] if accumulates else [])]
    flops = values.numel if accumulates else 0
    cost = memory_bound_cost(read, [Tensor(values.dims, self.format)], flops=flops)
    return cost._replace(assumes=ASSUMES_SMALL_INDEX)


def _cost_nll_loss(args: OpArguments, in_place: bool) -> Cost:
    """nll_loss_forward: reads one logit per target, and its weight, if given.

    Writes the loss of each target (reduction 0), or their sum or mean, and the sum of the weights.
    """
    target, logits = args["target"], args["self"]
    read = Tensor((target.numel * (2 if args.maybe("weight") else 1),), logits.format)
    losses = Tensor((target.numel if args.int("reduction") == 0 else 1,), logits.format)
    weight_sum = Tensor((), logits.format)
    return memory_bound_cost([read, target], [losses, weight_sum], flops=target.numel)


def _cost_nll_loss_backward(args: OpArguments, in_place: bool) -> Cost:
    """The targets' gradients; filling the others with zeros is another op."""
    target, logits = args["target"], args["self"]
    return memory_bound_cost([args["grad_output"], target], [Tensor((target.numel,), logits.format)], flops=0)


FORMULAS: dict[str, Formula] = {
    "embedding": _cost_embedding,
    "embedding_dense_backward": _cost_embedding_backward,
    "_embedding_bag": _cost_embedding_bag,
    "index_select": _cost_index_select,
    "gather": _cost_gather,
    "index": _cost_index,
    **dict.fromkeys(("index_put_", "_index_put_impl_"), _cost_index_put),
    "nll_loss_forward": _cost_nll_loss,
    "nll_loss_backward": _cost_nll_loss_backward,
}
