"""Arguments of ops as Kineto records them."""

from trainyard.events import OperandShape

HALF, SINGLE, LONG = "c10::BFloat16", "float", "long int"


class Listed(tuple):
    """The dims of the tensors of a list."""

    __slots__ = ()


def shape(*arguments):
    """A tensor is (format, dims), None an omitted argument, `Listed` a list of tensors, anything else a value as the
    profiler writes it."""
    dims, types, values, lists = [], [], [], []
    for argument in arguments:
        entry = ((), "", "", ())
        if isinstance(argument, Listed):
            entry = ((), "TensorList", "", tuple(tuple(each) for each in argument))
        elif isinstance(argument, tuple):
            entry = (tuple(argument[1]), argument[0], "", ())
        elif argument is not None:
            entry = ((), "ScalarList" if isinstance(argument, list) else "Scalar", str(argument), ())
        for column, part in zip((dims, types, values, lists), entry):
            column.append(part)
    nested = tuple(lists) if any(lists) else ()
    return OperandShape(dims=tuple(dims), types=tuple(types), values=tuple(values), lists=nested)
