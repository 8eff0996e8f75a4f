"""The house rules that docs/architecture.md states, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "mpelu"
MODULES = {
    ".".join(("mpelu", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(SOURCE.rglob("*.py"))
}
RUN_FILES = (
    "config.json", "environment.json", "data.json", "preprocess.safetensors", "metrics.jsonl",
    "speed.jsonl", "status.json", "history.jsonl", "model.safetensors", "inspect.json",
    "inspect.png", "top5.json", "lock.json",
)  # fmt: skip


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> set[str]:
    """Modules of the package that a module imports anywhere, but for type checking alone."""
    found = set()
    for_types = {
        id(inner)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(module)):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in MODULES and name != module}


def package(module: str) -> str:
    """The room a module is in: mpelu.lab.training for mpelu.lab.training.trainer."""
    parts = module.split(".")
    depth = 3 if parts[:2] == ["mpelu", "lab"] else 2
    return ".".join(parts[:depth])


def test_no_module_imports_itself_in_a_circle() -> None:
    tuple(TopologicalSorter({module: imports(module) for module in MODULES}).static_order())


def test_no_package_imports_itself_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for module in MODULES:
        if module in ("mpelu", "mpelu.lab"):  # these only hand on public names
            continue
        others = {package(name) for name in imports(module)} - {package(module), "mpelu"}
        rooms.setdefault(package(module), set()).update(others)
    tuple(TopologicalSorter(rooms).static_order())


def test_the_library_never_imports_the_lab() -> None:
    for module in MODULES:
        if not module.startswith("mpelu.lab"):
            assert not [name for name in imports(module) if name.startswith("mpelu.lab")], module


def test_what_reads_a_model_is_imported_from_the_package_alone() -> None:
    for module in MODULES:
        if package(module) != "mpelu.graph":
            assert not [name for name in imports(module) if name.startswith("mpelu.graph.")], module


def test_no_two_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_hides_a_public_function_of_its_name() -> None:
    for module, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        public = {
            alias.asname or alias.name
            for node in ast.walk(tree(module))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" not in MODULES
        }
        hidden = {name for name in public if f"{module}.{name}" in MODULES}
        assert hidden == set(), module


@pytest.mark.parametrize("name", RUN_FILES)
def test_only_the_run_package_names_the_files_of_a_run_folder(name: str) -> None:
    for module in MODULES:
        if module.startswith("mpelu.lab.run"):
            continue
        texts = {
            node.value
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert name not in texts, module


def test_only_commands_print() -> None:
    """And the display, which commands ask for, and `python -m mpelu.kernels`."""
    allowed = (
        "mpelu.lab.commands",
        "mpelu.lab.cli",
        "mpelu.lab.training.display",
        "mpelu.kernels.__main__",
    )
    for module in MODULES:
        if module.startswith(allowed):
            continue
        calls = [
            node.lineno
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert calls == [], module


def test_architecture_names_the_ways_of_a_run_and_of_a_study() -> None:
    text = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    _, _, way = text.partition("## The way of a run")
    named = [
        line.split("`")[1]
        for line in way.splitlines()
        if line[:2] in ("1.", "2.", "3.", "4.", "5.")
    ]
    assert len(named) == 10
    for name in named:
        assert (SOURCE / name).is_file(), name


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, mpelu.lab.cli\n"
        "try: mpelu.lab.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({"torch", "numpy", "matplotlib", "rich", "PIL"})


PUBLIC = ("", ".activations", ".functional", ".kernels", ".models", ".theory")


def test_tab_completion_shows_public_names_alone() -> None:
    """In a new process, where nothing has been imported by another test."""
    code = (
        "import importlib, mpelu\n"
        "mpelu.diagnosis.diagnose\n"
        f"for name in {PUBLIC}:\n"
        "    module = importlib.import_module('mpelu' + name)\n"
        "    shown = [each for each in dir(module) if not each.startswith('_')]\n"
        "    assert shown == sorted(module.__all__), shown\n"
        "    for each in shown: getattr(module, each)\n"
        "    assert shown == [each for each in dir(module) if not each.startswith('_')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
