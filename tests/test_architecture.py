"""Who may import whom, and how long things may be; read from the sources, nothing is run."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "quasar"
KINDS = ("drafters", "verifiers", "acceptors")
MAX_FILE, MAX_FUNCTION, MAX_CONTRACT_METHOD = 250, 60, 45
GENERATED = {".git", ".venv", "build", "dist", "runs", "__pycache__", ".hypothesis"}
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".json", ".jsonl", ".sh", "", ".typed"}

SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in SOURCES}


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, at whatever depth of its code."""
    found = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".")
            package = package if path.name == "__init__.py" else package[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from quasar.core import trees` imports the module that it names, and nothing of the package's own
            named = {f"{module}.{alias.name}" for alias in node.names}
            found |= named if named <= MODULES else {module, *named}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def functions(path: Path):
    for node in ast.walk(TREES[path]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, node.end_lineno - node.lineno + 1


def importers(library: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in SOURCES if any(within(name, library) for name in imports(path))}


# --- imports ----------------------------------------------------------------------------------------------------------


ROOMS = {
    "core": (),
    "version": (),
    "machine": ("version",),
    "models": ("core", "machine"),
    "hf": ("core",),
    "zoo": ("core", "models"),
    "plugins": ("core", "version"),
    "pipelines": ("core", "hf", "plugins"),
    "routing": ("core",),
    "drafters": ("core", "models", "routing"),
    "verifiers": ("core", "models", "routing"),
    "acceptors": ("core",),
    "testing": ("core", "models", "acceptors", "plugins", "hf"),
    "prompts": ("core",),
    "compare": ("core", "pipelines", "hf", "prompts", "plugins", "machine", "testing"),
    "profile": ("core", "models", "pipelines", "hf", "plugins", "prompts", "machine"),
    "fidelity": ("core", "models", "pipelines", "hf", "plugins", "prompts", "machine"),
}
"""Room → rooms that it may import, at whatever depth of the code and for types too."""

ENTRANCES = ("quasar", "quasar.builtins", "quasar.cli", "quasar.commands")
"""Where the rooms meet: these import what they name, and nothing imports them."""


def test_a_room_imports_only_the_rooms_that_stand_beside_its_name():
    found = set()
    for path in SOURCES:
        name = module_name(path)
        if name == "quasar" or within(name, *ENTRANCES[1:]):
            continue
        room = name.split(".")[1]
        allowed = tuple(f"quasar.{each}" for each in (room, *ROOMS[room]))
        own = {each for each in imports(path) if within(each, "quasar") and each != "quasar"}
        found |= {f"{name} imports {each}" for each in own if not within(each, *allowed)}
        found |= {f"{name} imports {each} of the package's face" for each in faces(path)}
    assert not found


def faces(path: Path) -> set[str]:
    """Return what a file takes from ``quasar`` itself, which would make everything depend on everything."""
    nodes = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.ImportFrom) and node.module == "quasar"]
    return {alias.name for node in nodes for alias in node.names}


def test_nothing_in_a_room_takes_a_name_from_the_face_of_its_room():
    found = set()
    for path in SOURCES:
        name = module_name(path)
        around = {name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)}
        found |= {f"{name} imports {each}" for each in imports(path) & around}
    assert not found


def test_every_room_stands_in_the_table():
    rooms = {module_name(path).split(".")[1] for path in SOURCES if module_name(path) != "quasar"}
    assert rooms - set(ROOMS) == {entrance.partition(".")[2] for entrance in ENTRANCES[1:]}


def test_no_import_leads_back_to_where_it_came_from():
    modules = {module_name(path): path for path in SOURCES}
    arrows = {name: imports(path) & modules.keys() - {name} for name, path in modules.items()}
    settled: set[str] = set()
    while ready := {name for name in arrows.keys() - settled if arrows[name] <= settled}:
        settled |= ready
    assert not arrows.keys() - settled


@pytest.mark.parametrize("kind", KINDS)
def test_a_component_does_not_import_another(kind):
    files = {f"quasar.{kind}.{path.stem}" for path in (PACKAGE / kind).glob("*.py") if path.stem != "__init__"}
    for path in (PACKAGE / kind).glob("*.py"):
        assert not imports(path) & files


def test_transformers_is_imported_by_the_rooms_that_are_about_it():
    assert importers("transformers")
    assert all(name.startswith(("quasar/hf/", "quasar/zoo/")) for name in importers("transformers"))


@pytest.mark.parametrize("library", ["torchao", "pluggy"])
def test_a_library_is_imported_in_one_file(library):
    assert len(importers(library)) == 1


def test_no_file_imports_a_package_that_is_not_installed_with_ours():
    declared = (
        "torch",
        "transformers",
        "torchao",
        "pluggy",
        "pydantic",
        "yaml",
        "safetensors",
        "gguf",
        "tqdm",
        "packaging",
    )
    brought_by_transformers = ("numpy", "tokenizers")
    known = ("quasar", "packaging", *declared, *brought_by_transformers, *sys.stdlib_module_names)
    found = {f"{module_name(path)}: {name}" for path in SOURCES for name in imports(path) if not within(name, *known)}
    assert not found


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_no_file_is_too_long():
    long = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in SOURCES}
    assert not {name: lines for name, lines in long.items() if lines > MAX_FILE}


def test_no_function_is_too_long():
    long = {f"{module_name(path)}.{node.name}": lines for path in SOURCES for node, lines in functions(path)}
    assert not {name: lines for name, lines in long.items() if lines > MAX_FUNCTION}


def test_the_method_of_a_contract_fits_one_screen():
    long = {
        f"{module_name(path)}.{node.name}": lines
        for path in SOURCES
        for node, lines in functions(path)
        if node.name in ("propose", "verify", "accept") and lines > MAX_CONTRACT_METHOD
    }
    assert not long


# --- paths ------------------------------------------------------------------------------------------------------------


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    absolute = re.compile(r"(?<![\w.])/(work|root|home)/")
    found = set()
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if any(part in GENERATED or part.endswith(("_cache", ".egg-info")) for part in parts):
            continue
        if path.is_file() and path.suffix in TEXT and absolute.search(path.read_text("utf-8", errors="replace")):
            found.add(str(path.relative_to(ROOT)))
    assert not found
