"""Who may import whom: rooms in one order, and pure rooms without torch and asyncio.

Imports are read from the source, so nothing is loaded. Imports inside functions and under
TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "moss_stream"

ROOMS = (
    "errors",
    "types",
    "config",
    "audio",
    "transcript",
    "model",
    "engine",
    "recordings",
    "live",
    "captions",
    "server",
    "transcriber",
    "moss_stream",  # the package itself: it exports the transcriber
    "cluster",
    "doctor",
    "cli_options",
    "serve_command",
    "cli",
)
"""A module imports only from its own room and from earlier ones."""

ONLY_FROM = {"live": {"errors", "types", "config", "audio", "transcript", "live"}}
"""Rooms that see less than the order gives them."""

PURE = (
    "errors",
    "types",
    "config",
    "audio",
    "transcript",
    "engine.request",
    "engine.blocks",
    "engine.prefix",
    "engine.verify",
    "engine.sequence",
    "engine.scheduler",
    "engine.encoder_cache",
    "live",
    "captions.clock",
    "captions.export",
    "captions.publisher",
    "captions.room",
    "server.protocols",
)
"""Modules and packages that are numbers in, values out."""

FORBIDDEN = {"torch", "asyncio"}


def _modules(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def _imports(name: str, modules: dict[str, Path]) -> Iterator[str]:
    """Dotted names that a module imports; own ones as the module they are found in."""
    tree = ast.parse(modules[name].read_text(encoding="utf-8"))
    is_package = modules[name].name == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules else base


def _room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _layer_faults(package: Path) -> list[str]:
    modules = _modules(package)
    faults = []
    for name in modules:
        room = _room(name)
        if room not in ROOMS:
            faults.append(f"{name} is in no known room")
            continue
        allowed = ONLY_FROM.get(room, set(ROOMS[: ROOMS.index(room) + 1]))
        for imported in _imports(name, modules):
            if imported.split(".")[0] == package.name and _room(imported) not in allowed:
                faults.append(f"{name} imports {imported}")
    return faults


def _loads(name: str, modules: dict[str, Path]) -> Iterator[str]:
    """What comes in with a module: its imports and the packages around it.

    Of the package itself only the imports at its top count: it may offer its names on demand.
    """
    if name == PACKAGE.name:
        for node in ast.parse(modules[name].read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""
        return
    yield from _imports(name, modules)
    yield name.rpartition(".")[0]


def _purity_faults(package: Path) -> list[str]:
    modules = _modules(package)
    prefixes = tuple(f"{package.name}.{pure}" for pure in PURE)
    faults = []
    for name in modules:
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            continue
        chains = [[name]]
        seen = {name}
        while chains:
            chain = chains.pop()
            for loaded in _loads(chain[-1], modules):
                if loaded.split(".")[0] in FORBIDDEN:
                    faults.append(" imports ".join([*chain, loaded]))
                elif loaded in modules and loaded not in seen:
                    seen.add(loaded)
                    chains.append([*chain, loaded])
    return faults


def _write(package: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return package


def test_modules_import_only_from_their_own_or_earlier_rooms() -> None:
    assert _layer_faults(PACKAGE) == []


def test_pure_modules_load_neither_torch_nor_asyncio() -> None:
    assert _purity_faults(PACKAGE) == []


def test_packages_are_importable() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("audio/a.py", "from moss_stream.engine import b", "moss_stream.audio.a imports"),
        ("audio/a.py", "def f():\n    import moss_stream.engine.b", "moss_stream.audio.a imports"),
        ("audio/a.py", "from ..engine.b import x", "moss_stream.audio.a imports"),
        ("live/a.py", "from moss_stream.engine.b import x", "moss_stream.live.a imports"),
        ("engine/a.py", "from moss_stream import Transcriber", "moss_stream.engine.a imports"),
        ("extra.py", "", "moss_stream.extra is in no known room"),
    ],
)
def test_layers_catch_a_fault(tmp_path: Path, file: str, source: str, fault: str) -> None:
    package = _write(tmp_path / "moss_stream", {"engine/b.py": "", file: source})

    faults = _layer_faults(package)

    assert len(faults) == 1
    assert faults[0].startswith(fault)


@pytest.mark.parametrize(
    "files",
    [
        {"types.py": "import torch"},
        {"live/a.py": "from asyncio import Queue"},
        {"live/a.py": "from moss_stream.audio import b", "audio/b.py": "import torch.nn"},
        {"engine/blocks.py": "", "engine/__init__.py": "from moss_stream.engine import kv"}
        | {"engine/kv.py": "import torch"},
        {"types.py": "", "__init__.py": "from moss_stream.transcriber import Transcriber"}
        | {"transcriber.py": "import torch"},
    ],
    ids=["direct", "from", "through a module", "through a package", "through the package itself"],
)
def test_purity_catches_a_fault(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(_purity_faults(_write(tmp_path / "moss_stream", files))) >= 1


def test_purity_allows_names_on_demand(tmp_path: Path) -> None:
    source = "def __getattr__(name):\n    from moss_stream.transcriber import Transcriber"
    files = {"types.py": "", "__init__.py": source, "transcriber.py": "import torch"}

    assert _purity_faults(_write(tmp_path / "moss_stream", files)) == []
