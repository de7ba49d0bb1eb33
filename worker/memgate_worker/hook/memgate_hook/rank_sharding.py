"""How DTensor divides lists of tensors, worked out once for tensors that are alike.

An optimizer calls each of its operators (``_foreach_addcdiv_``) with all parameters at once.
DTensor works out how each of them is divided, goes through all arguments again for every one, and
remembers the result with the numbers among the arguments, which change from step to step (Adam's
bias correction). None of that is on the GPU. A model has hundreds of parameters of a few shapes, so
here each shape is worked out, once; the result is the one that DTensor would have come to.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

#: operators that take lists, and treat the tensors at one place of each list alone
_OF_LISTS = "aten::_foreach_"


def divide_lists_once(module: Any) -> None:
    """Change ``torch.distributed.tensor._sharding_prop``."""
    propagator = module.ShardingPropagator
    propagate = getattr(propagator, "propagate_op_sharding_non_cached", None)
    if propagate is None:
        return
    #: one of each kind of column, and its result
    known: dict[Any, Any] = {}

    @wraps(propagate)
    def propagate_op_sharding_non_cached(self: Any, op_schema: Any) -> Any:
        columns = _find_columns(op_schema, module.DTensorSpec)
        if columns is None:
            return propagate(self, op_schema)
        kinds = list(dict.fromkeys(columns))
        key = (op_schema.op, tuple(kinds), _without_lists(op_schema))
        result = known.get(key)
        if result is None:
            result = propagate(self, _take(op_schema, [columns.index(kind) for kind in kinds]))
            known[key] = result
        # what has to be divided differently first is kept with all its arguments
        if result.needs_redistribute or result.redistribute_schema is not None:
            return propagate(self, op_schema)
        return type(result)(_deal_out(result.output_spec, columns, kinds))

    propagator.propagate_op_sharding_non_cached = propagate_op_sharding_non_cached


def _find_columns(op_schema: Any, tensor: type) -> list[Any] | None:
    """Return what stands at each place of the lists, or nothing if the operator has no lists."""
    if not op_schema.op.name().startswith(_OF_LISTS):
        return None
    lists = [one for one in op_schema.args_schema if isinstance(one, (list, tuple))]
    named = any(isinstance(one, (list, tuple)) for one in op_schema.kwargs_schema.values())
    if named or not lists or len({len(one) for one in lists}) != 1:
        return None
    columns = list(zip(*(map(_without_number, one) for one in lists)))
    known = (tensor, type)
    return columns if all(isinstance(part, known) for one in columns for part in one) else None


def _without_number(value: Any) -> Any:
    """Return an argument, with the type in the place of a number."""
    return type(value) if isinstance(value, (int, float, complex)) else value


def _without_lists(op_schema: Any) -> Any:
    """Return the arguments that go with every column, to look results up by."""
    return (
        tuple(
            list if isinstance(one, (list, tuple)) else _without_number(one)
            for one in op_schema.args_schema
        ),
        tuple((name, _without_number(one)) for name, one in op_schema.kwargs_schema.items()),
    )


def _take(op_schema: Any, places: list[int]) -> Any:
    """Return a call with some of the columns alone."""
    taken = tuple(
        type(one)(one[place] for place in places) if isinstance(one, (list, tuple)) else one
        for one in op_schema.args_schema
    )
    made = type(op_schema)(op_schema.op, taken, op_schema.kwargs_schema)
    made.schema_info = op_schema.schema_info
    return made


def _deal_out(spec: Any, columns: list[Any], kinds: list[Any]) -> Any:
    """Return what the result of each kind is, for each column."""
    if not isinstance(spec, (list, tuple)):
        return spec
    by_kind = dict(zip(kinds, spec))
    return tuple(by_kind[column] for column in columns)
