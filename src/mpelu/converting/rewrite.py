"""Calls of activations' functions made into modules, by torch.fx."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from mpelu.activations import find_function
from mpelu.converting.faithful import numbers_read, watched
from mpelu.converting.places import take_over
from mpelu.converting.recognize import module_for
from mpelu.converting.trials import without_traces
from mpelu.graph import Inputs, arguments, evaluating, substitute
from mpelu.init.model import reason


@dataclass
class Rewriting:
    """A model whose functions are modules, as far as its parts could be traced."""

    model: nn.Module
    """That which was given, or the module that takes its place if it calls functions itself."""
    fixed: dict[int, str] = field(default_factory=dict)
    """By the id of a new module: numbers that its code reads no more."""
    left: dict[int, str] = field(default_factory=dict)
    """By the id of a module that was left: why."""


def rewrite_functions(model: nn.Module, inputs: Inputs, owners: Sequence[nn.Module]) -> Rewriting:
    """Replaces modules that call activations' functions by ones that call modules.

    Each is traced on its own, with the modules inside it as they are: their control flow doesn't
    matter. Modules that torch.fx can't trace are left, and so are those whose trace would lack
    something that their code does.
    """
    done = Rewriting(model)
    distinct = {id(owner): owner for owner in owners}
    constants = _constant_arguments(model, inputs, list(distinct.values()))
    for key, owner in distinct.items():
        try:
            new, read = _traced(owner, constants.get(key, {}))
        except _NotTraced as error:
            done.left[key] = str(error)
            continue
        if read:
            listed = ", ".join(f"{name} = {value}" for name, value in sorted(read.items()))
            done.fixed[id(new)] = f"fixed in the traced code: {listed}"
        if owner is done.model:
            done.model = new
            continue
        for parent in list(done.model.modules()):
            for name, child in parent._modules.items():
                if child is owner:
                    parent._modules[name] = new
    return done


class _NotTraced(Exception):
    """Why a module is left."""


def _constant_arguments(
    model: nn.Module, inputs: Inputs, owners: Sequence[nn.Module]
) -> dict[int, dict[str, Any]]:
    """Arguments that decide what is computed, such as mask=None, by the id of the module.

    What torch.fx traces holds for these values, and says so where another is given.
    """
    found: dict[int, dict[str, Any]] = {}

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        found[id(module)] = {
            name: value
            for name, value in bound.arguments.items()
            if value is None or isinstance(value, (bool, str))
        }

    handles = [owner.register_forward_pre_hook(look, with_kwargs=True) for owner in owners]
    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    modules = list(model.modules())
    try:
        with without_traces(modules), evaluating(modules), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Shallow(fx.Tracer):
    """Follows one module's code and none of the modules in it."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(owner: nn.Module, constants: dict[str, Any]) -> tuple[fx.GraphModule, dict[str, float]]:
    """The module with modules for its activations' functions, and the numbers that it read."""
    graphs: list[fx.Graph] = []
    with watched(owner) as changed, numbers_read(owner) as read:
        for is_training in (True, False):
            owner.training = is_training
            try:
                graphs.append(_Shallow().trace(owner, concrete_args=dict(constants)))
            except Exception as error:  # whatever the module's code raises on a symbolic tensor
                raise _NotTraced(f"torch.fx can't trace its module: {reason(error)}") from error
    if changed:
        listed = ", ".join(dict.fromkeys(changed))
        raise _NotTraced(f"a trace of its module would fix what its code changes: {listed}")
    graph = _with_mode(*graphs)
    if graph is None:
        raise _NotTraced("its module does something else in training than in evaluation")
    # torch.fx numbers the constant ones, but they may be passed by name.
    names = inspect.signature(owner.forward).parameters
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(inputs, names, strict=False):
        if node.target.lstrip("*") != name and not node.target.startswith("*"):
            node.target = name
    new = fx.GraphModule(owner, graph, type(owner).__name__)
    _keep_the_rest(new, owner)
    if not _put_modules(new):
        raise _NotTraced("torch.fx sees no call of it that a module can stand for")
    new.recompile()
    take_over(new, owner)
    return new, read


def _with_mode(training: fx.Graph, evaluation: fx.Graph) -> fx.Graph | None:
    """One graph for both modes: flags that differ are read from the module, as F.dropout's is."""
    one, other = list(training.nodes), list(evaluation.nodes)
    if [(n.op, str(n.target)) for n in one] != [(n.op, str(n.target)) for n in other]:
        return None
    for node, twin in zip(one, other, strict=True):
        mine = {**dict(enumerate(node.args)), **node.kwargs}
        its = {**dict(enumerate(twin.args)), **twin.kwargs}
        flags = {key for key in mine if mine[key] is True and its.get(key) is False}
        if any(str(mine[key]) != str(its.get(key)) for key in mine if key not in flags):
            return None
        if flags:
            with training.inserting_before(node):
                mode = training.create_node("get_attr", "training")
            node.args = tuple(mode if i in flags else a for i, a in enumerate(node.args))
            node.kwargs = {k: mode if k in flags else v for k, v in node.kwargs.items()}
    return training


def _keep_the_rest(new: fx.GraphModule, owner: nn.Module) -> None:
    """What torch.fx doesn't reach or takes apart stays: modules, buffers, attributes."""
    for name in ("_parameters", "_buffers", "_modules"):
        getattr(new, name).update(getattr(owner, name))
    new._non_persistent_buffers_set |= owner._non_persistent_buffers_set
    for key, value in vars(owner).items():
        if key not in new.__dict__ and not key.startswith("_"):
            new.__dict__[key] = value


def _put_modules(new: fx.GraphModule) -> bool:
    """Puts a module at every call of an activation's function; False if there is none."""
    count = 0
    for node in list(new.graph.nodes):
        function = getattr(Tensor, node.target, None) if node.op == "call_method" else node.target
        record = find_function(function) if node.op in ("call_function", "call_method") else None
        named = {**node.kwargs, "inplace": True} if _ends_in_underscore(node) else node.kwargs
        module = None if record is None else module_for(record, node.args[1:], dict(named))
        if record is None or module is None:
            continue
        source = node.args[0] if node.args else node.kwargs["input"]
        name = f"{record.name}_{count}"
        while hasattr(new, name):
            count += 1
            name = f"{record.name}_{count}"
        new.add_submodule(name, module.train(new.training))
        with new.graph.inserting_before(node):
            called = new.graph.call_module(name, (source,))
        if getattr(module, "inplace", False) and isinstance(source, fx.Node):
            # What follows takes the output, which is the same tensor; views of it may remain.
            source.replace_all_uses_with(called, set(_after(node)).__contains__)
        node.replace_all_uses_with(called)
        new.graph.erase_node(node)
        count += 1
    return count > 0


def _ends_in_underscore(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_")


def _after(node: fx.Node) -> list[fx.Node]:
    found, following = [], node.next
    while following.op != "root":
        found.append(following)
        following = following.next
    return found
