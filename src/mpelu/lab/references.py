"""Code of the user's own, named as ``package.module:factory``.

Config fields such as `model`, `activation` or `optimizer` take the name of a built-in or such a
reference. A run folder may come from a stranger, so a reference that was read from one is imported
only if the user vouches for it: see `check_trusted`.

Importing this module doesn't import torch.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mpelu import activations
from mpelu.lab.errors import UserError, flag, listed, one_line


def is_reference(name: object) -> bool:
    """Whether a name refers to the user's own code.

    Example:
        >>> is_reference("torch.optim:NAdam"), is_reference("resnet-20")
        (True, False)
    """
    return isinstance(name, str) and activations.is_reference(name)


def load(field: str, name: str) -> Callable[..., Any]:
    """Imports what a reference names. Modules in the current directory are found.

    Args:
        field: the argument it was given for.
        name: the reference.

    Raises:
        UserError: if the module can't be imported, or holds no such callable.

    Example:
        >>> load("optimizer", "math:sqrt")(4.0)
        2.0
    """
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise UserError(
            f"{name}: can't import {module_name}: {kind}{one_line(error)}", field=field
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UserError(f"{name}: {module_name} has no {path!r}", field=field)
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{name}: expected a callable, got {type(found).__name__}", field=field)
    result: Callable[..., Any] = found
    return result


def call(
    field: str,
    name: str,
    *arguments: Any,
    offered: Mapping[str, Any] | None = None,
    **required: Any,
) -> Any:
    """Calls what a reference names.

    Args:
        field: the argument it was given for.
        name: the reference.
        *arguments: positional arguments.
        offered: keyword arguments that are passed if the callable takes them.
        **required: keyword arguments that are always passed.

    Raises:
        UserError: if it can't be imported, or raises.
    """
    factory = load(field, name)
    taken = {key: value for key, value in (offered or {}).items() if takes(factory, key)}
    try:
        return factory(*arguments, **taken, **required)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{name} raised {type(error).__name__}: {one_line(error)}", field=field
        ) from error


def takes(factory: Callable[..., Any], argument: str) -> bool:
    """Whether a callable takes a keyword argument.

    Example:
        >>> takes(sorted, "key"), takes(len, "key")
        (True, False)
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        each.kind is inspect.Parameter.VAR_KEYWORD or (each.name == argument and each.kind in kinds)
        for each in parameters
    )


def required(factory: Callable[..., Any]) -> list[str]:
    """The arguments that a callable can't be called without.

    Example:
        >>> required(lambda width, depth=2: None)
        ['width']
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in several
    ]


def check_trusted(
    run: object,
    references: Mapping[str, str],
    trust: bool,
    needed: Collection[str] | None = None,
) -> None:
    """Refuses to import code that a run folder names, unless the user vouches for it.

    Args:
        run: the run folder, for the message.
        references: the references in its config, by field.
        trust: whether the user vouches for them.
        needed: the fields whose code will be imported (default: all).

    Raises:
        UserError: if there are any that aren't trusted; nothing has been imported.
    """
    found = [
        f"{flag(field)} {name}"
        for field, name in references.items()
        if needed is None or field in needed
    ]
    if found and not trust:
        named = listed(found, "and")
        raise UserError(
            f"{run}: names code to import ({named}); if you trust it, add --trust (in Python, "
            "trust=True)"
        )


def describe_source(name: str) -> dict[str, str]:
    """Name and SHA-256 of the file that defines what a reference names; call `load` first."""
    module = sys.modules[name.partition(":")[0]]
    file = getattr(module, "__file__", None)
    if file is None:
        return {"name": name}
    try:
        with open(file, "rb") as source:
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return {"name": name}
    return {"name": name, "file": os.path.basename(file), "sha256": digest}
