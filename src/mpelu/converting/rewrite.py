"""Rewrites methods that call activation functions, so that they call modules instead."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import itertools
import linecache
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from mpelu.activations import find_function
from mpelu.converting.observe import observe
from mpelu.converting.places import find_places, is_skipped
from mpelu.converting.recognize import is_among, module_for
from mpelu.graph import Inputs, arguments, evaluating, reason, substitute, unchanged


@dataclass
class Rewriting:
    """What became of the functions that a model calls."""

    notes: dict[int, str] = field(default_factory=dict)
    """What to know about the code that calls a new module, by its id."""
    left: dict[tuple[int, str], str] = field(default_factory=dict)
    """Why a method was left, by the id of its module and its name."""
    classes: list[str] = field(default_factory=list)
    """The classes of the modules whose code was rewritten."""


def rewrite_functions(
    model: nn.Module,
    inputs: Inputs,
    replace: Sequence[type[nn.Module]] | None,
    skipped: Sequence[str],
) -> Rewriting:
    """Makes methods that call activation functions call modules, which it adds to the model.

    Each method is traced on its own, and the modules it calls aren't looked into, so their control
    flow doesn't matter. A module stays the same object; its class becomes one that inherits from
    its own. Methods that torch.fx can't trace are left, and so are those whose trace would lack
    something that their code does.
    """
    # Functions in attributes are swapped there, unless they are called with more than their input.
    places = find_places(model, replace)
    modules = [place.module for place in places]
    observed = observe(model, inputs, modules, left={id(module) for module in modules})
    called_with_more = [p for p in places if observed.modules[id(p.module)].takes_more]
    for place in called_with_more:
        place.put_back()
    found = observe(model, inputs) if called_with_more else observed
    functions = [
        each
        for each in found.functions
        if not each.stays and not is_skipped(each.path, skipped) and is_among(each.record, replace)
    ]
    done = Rewriting()
    # A method that others call comes first, so that their traces have its modules.
    deepest = sorted(functions, key=lambda each: -len(each.methods))
    methods = {(id(each.owner), each.method): each.owner for each in deepest}
    constants = _constant_arguments(model, inputs, methods)
    for (key, method), owner in methods.items():
        try:
            added, read = _rewrite(owner, method, constants.get((key, method), []))
        except _NotTraced as error:
            done.left[key, method] = str(error)
            continue
        notes = []
        if read:
            listed = ", ".join(f"{name} = {value}" for name, value in sorted(read.items()))
            notes.append(f"fixed in the traced code: {listed}")
        mine = {name for owner_id, name in methods if owner_id == key}
        for name, called in _other_callers(owner, mine):
            notes.append(f"{name}, which wasn't run, still calls {called}")
        done.notes.update({id(module): "; ".join(notes) for module in added})
        done.classes.append(type(owner).__name__)
    for place in places:
        place.put_back()
    return done


class _NotTraced(Exception):
    """Why a method is left."""


def _constant_arguments(
    model: nn.Module, inputs: Inputs, methods: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Arguments that decide what is computed, such as mask=None, for each call of a method.

    A trace by torch.fx holds for these values alone, and refuses others.
    """
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    modules = {id(module): module for module in model.modules()}

    def watch(key: tuple[int, str], own: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(own).bind(*args, **kwargs)
            bound.apply_defaults()
            constants = {
                name: value
                for name, value in bound.arguments.items()
                if value is None or isinstance(value, (bool, str))
            }
            found.setdefault(key, []).append(constants)
            return own(*args, **kwargs)

        return method

    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    everything = list(modules.values())
    with unchanged(everything), evaluating(everything), torch.no_grad():
        for owner, name in methods:
            own = getattr(modules[owner], name)
            modules[owner].__dict__[name] = watch((owner, name), own)
        model(*args, **kwargs)
    return found


def _rewrite(
    owner: nn.Module, method: str, calls: Sequence[dict[str, Any]]
) -> tuple[list[nn.Module], dict[str, float]]:
    """Rewrites one method; returns the modules it calls now and the numbers its code reads."""
    if method in vars(owner):
        raise _NotTraced(f"{method} is an attribute of the module itself, not of its class")
    copying = ("__reduce__", "__reduce_ex__", "__deepcopy__")
    kind = owner._rewritten[0] if isinstance(owner, Rewritten) else type(owner)
    if any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in copying):
        raise _NotTraced(
            "its class defines how it is copied or pickled, which would undo the rewriting"
        )
    if any(one != calls[0] for one in calls[1:]):
        raise _NotTraced(f"{method} is called with different constants, of which a trace keeps one")
    constants = calls[0] if calls else {}
    graphs: list[fx.Graph] = []
    with _watched(owner) as changed, _numbers_read(owner) as read:
        for is_training in (True, False):
            owner.training = is_training
            tracer = _Shallow()
            tracer.traced_func_name = method
            try:
                graphs.append(tracer.trace(owner, concrete_args=dict(constants)))
            except Exception as error:  # whatever the module's code raises on a symbolic tensor
                raise _NotTraced(f"torch.fx can't trace its module: {reason(error)}") from error
    if changed:
        listed = ", ".join(dict.fromkeys(changed))
        raise _NotTraced(f"a trace of its module would fix what its code changes: {listed}")
    graph = _with_mode(*graphs)
    if graph is None:
        raise _NotTraced("its module does different things in training and in evaluation")
    # torch.fx numbers the constant ones, but they may be passed by name.
    names = list(inspect.signature(getattr(owner, method)).parameters)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(inputs, names, strict=False):
        if node.target.lstrip("*") != name and not node.target.startswith("*"):
            node.target = name
    modules = _put_modules(owner, graph)
    if not modules:
        raise _NotTraced("torch.fx sees no call that a module can replace")
    new = _inherited(type(owner), {method: _Code.of(graph)})
    for name, module in modules.items():
        owner.add_module(name, module)
    set_class(owner, new)
    return list(modules.values()), read


class _Shallow(fx.Tracer):
    """Follows the code of one module, but not of the modules it calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


@contextlib.contextmanager
def _watched(owner: nn.Module) -> Iterator[list[str]]:
    """Undoes what the code inside changes, and lists it once the code has run.

    A trace would lack all of it: counters, attributes that are set, numbers that are drawn.
    """
    changed: list[str] = []
    with unchanged(list(owner.modules())):
        before = _state(owner)
        try:
            yield changed
        finally:
            after = _state(owner)
            differing = [key for key in before | after if before.get(key) != after.get(key)]
            changed += sorted(differing)


def _state(owner: nn.Module) -> dict[str, Any]:
    """Marks of everything that code may change, by its name."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    generators = [state.tolist() for state in (torch.get_rng_state(), *gpus)]
    found: dict[str, Any] = {"the state of a random generator": (random.getstate(), generators)}
    of_every_module = vars(nn.Module()).keys()
    for path, module in owner.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in of_every_module}
        stored = {**own, **module._parameters, **module._buffers, **module._modules}
        for key, value in stored.items():
            is_constant = key.startswith("_tensor_constant")  # set by torch.fx
            name = "a tensor that it makes" if is_constant else f"{path}.{key}".lstrip(".")
            found[name] = _mark(value)
    return found


def _mark(value: Any) -> Any:
    """Something that is equal as long as the value is the same. It keeps the value, for its id."""
    if isinstance(value, Tensor):
        return id(value), -1 if value.is_inference() else value._version, value
    if type(value) in (list, tuple, set):
        return [_mark(item) for item in value]
    if type(value) is dict:
        return [(_mark(key), _mark(item)) for key, item in value.items()]
    is_plain = value is None or type(value) in (bool, int, float, str)
    return (value,) if is_plain else (id(value), value)


@contextlib.contextmanager
def _numbers_read(owner: nn.Module) -> Iterator[dict[str, float]]:
    """Collects the attributes of a module that are numbers and that the code inside reads."""
    found: dict[str, float] = {}
    kind, plain = type(owner), vars(owner).keys() - vars(nn.Module()).keys()

    def read(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        if name in plain and isinstance(value, (int, float)):
            found[name] = value
        return value

    set_class(owner, _inherited(kind, {}, __getattribute__=read))
    try:
        yield found
    finally:
        set_class(owner, kind)


def _with_mode(training: fx.Graph, evaluation: fx.Graph) -> fx.Graph | None:
    """One graph for both modes, in which flags such as that of F.dropout come from the module."""
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


def _put_modules(owner: nn.Module, graph: fx.Graph) -> dict[str, nn.Module]:
    """Makes the graph call a module for every activation function; returns these by name."""
    made: dict[str, nn.Module] = {}
    numbers = itertools.count()
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        function = getattr(Tensor, node.target, None) if node.op == "call_method" else node.target
        record = find_function(function) if node.op in ("call_function", "call_method") else None
        if record is None:
            continue
        named = dict(node.kwargs)
        if str(getattr(node.target, "__name__", node.target)).endswith("_"):
            named["inplace"] = True
        module = module_for(record, node.args[1:], named)
        if module is None:
            continue
        source = node.args[0] if node.args else node.kwargs["input"]
        names = (f"{record.name}_{number}" for number in numbers)
        name = next(each for each in names if not hasattr(owner, each))
        made[name] = module.train(owner.training)
        with graph.inserting_before(node):
            called = graph.call_module(name, (source,))
        if getattr(module, "inplace", False) and isinstance(source, fx.Node):
            # What follows takes the output, which is the same tensor. Views of it may remain.
            source.replace_all_uses_with(called, set(nodes[index + 1 :]).__contains__)
        node.replace_all_uses_with(called)
        graph.erase_node(node)
    return made


def _other_callers(owner: nn.Module, methods: set[str]) -> list[tuple[str, str]]:
    """Other methods of a module's class that call activation functions, and which they call."""
    found = []
    kind = owner._rewritten[0] if isinstance(owner, Rewritten) else type(owner)
    for name in dir(kind):
        if name in methods or name.startswith("__") or hasattr(nn.Module, name):
            continue
        named = sorted(_names_in(getattr(kind, name, None)))
        called = [
            each
            for each in named
            if not hasattr(owner, each)
            and any(find_function(getattr(home, each, None)) for home in (F, torch, Tensor))
        ]
        if called:
            found.append((name, ", ".join(called)))
    return found


def _names_in(function: Any) -> set[str]:
    """Names of the attributes and globals in the code of a function; none for other objects."""
    code = getattr(inspect.unwrap(function), "__code__", function)
    if not isinstance(code, CodeType):
        return set()
    inner = (_names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


# --- Classes with new code ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Code:
    """The code of a method that torch.fx wrote, in a form that can be pickled."""

    source: str
    names: dict[str, Any]
    """Objects that the source refers to."""
    imports: dict[str, str]
    """Python modules that the source refers to, by name."""

    @classmethod
    def of(cls, graph: fx.Graph) -> _Code:
        code = graph.python_code("self")
        imports = {k: v.__name__ for k, v in code.globals.items() if isinstance(v, ModuleType)}
        names = {k: v for k, v in code.globals.items() if k not in imports}
        return cls(code.src.strip(), names, imports)

    def function(self, name: str) -> Any:
        """Makes the method, with its source where tracebacks and torch.jit look for it."""
        file = f"<mpelu.convert {hashlib.sha256(self.source.encode()).hexdigest()[:12]}>"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(True), file
        modules = {key: importlib.import_module(path) for key, path in self.imports.items()}
        space: dict[str, Any] = {**self.names, **modules}
        exec(compile(self.source, file, "exec"), space)
        function = space["forward"]
        function.__code__ = function.__code__.replace(co_name=name)
        function.__name__ = name
        return function


class Rewritten:
    """Marks a class with rewritten methods, which inherits from a module's own class.

    Copies of such a module, and modules loaded from a pickle, get such a class again.
    """

    _rewritten: ClassVar[tuple[type[nn.Module], dict[str, _Code]]]
    """The module's own class, and the code of the methods."""

    def __init_subclass__(cls) -> None:
        """Does nothing: the base must not take the class for one of its users' subclasses."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        _, (_, *args), *rest = reduced
        return _made_again, (*type(self)._rewritten, *args), *rest


def _inherited(kind: Any, methods: dict[str, _Code], **more: Any) -> type[nn.Module]:
    """Makes a class that inherits from a module's own, with these methods and attributes."""
    if issubclass(kind, Rewritten):
        kind, before = kind._rewritten
        methods = {**before, **methods}
    body = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body.update({name: code.function(name) for name, code in methods.items()}, **more)
    body["_rewritten"] = kind, methods
    try:
        made: type[nn.Module] = type(kind)(kind.__name__, (Rewritten, kind), body)
    except Exception as error:  # whatever a metaclass raises
        raise _NotTraced(f"no class can inherit from {kind.__name__}: {reason(error)}") from error
    return made


def _made_again(kind: type[nn.Module], methods: dict[str, _Code], *args: Any) -> Any:
    inherited: Any = _inherited(kind, methods)
    return inherited.__new__(inherited, *args)


def set_class(module: nn.Module, kind: type) -> None:
    """Sets the class of a module, even where its own class overrides `__setattr__`."""
    object.__setattr__(module, "__class__", kind)
