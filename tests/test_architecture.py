"""The shape of the source: who imports whom, how large things are, what is packaged, what no file may say."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("server", "engine", "kernels", "configs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]

TORCH_FREE_ENGINE = {
    "async_engine", "batch", "batch_builder", "cache_manager", "cache_plan", "cgroup", "config",
    "constraints", "counters", "cuts", "engine", "engine_process", "engine_rank", "errors", "faults",
    "grammar", "grammar_compiler", "grammar_spec", "heap", "hub", "id_pool", "lifecycle", "logs", "messages",
    "models.spec", "outputs", "progress", "reports", "request", "runner", "sampling_params", "scheduler",
    "stream", "token_masks", "waiting_queue",
}  # fmt: skip
"""Engine modules that import no torch, themselves or through others."""

TORCH_COMMANDS = {"mambad.server.cli_check", "mambad.server.cli_version", "mambad.server.bench_offline"}
"""The modules of `server` that may import the other half of the engine, and only inside a function."""


def sources(*folders: str) -> list[Path]:
    """Every Python file of these folders, or of all packages and the tests."""
    found = [path for folder in folders or (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def module_name(path: Path) -> str:
    """`engine/models/spec.py` → `mambad.engine.models.spec`; a folder's name for its `__init__.py`."""
    return ".".join(("mambad", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Every module that the code imports; `from a import b` counts as `a.b` when that is a module of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def top_level(tree: ast.Module) -> ast.Module:
    """The code that runs at import: without the bodies of functions and of `if TYPE_CHECKING`."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    cut = Cut().visit(tree)
    assert isinstance(cut, ast.Module)
    return cut


def normal_name(requirement: str) -> str:
    """The project's name in a requirement, in the form that constraints.txt uses."""
    return re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-")


KNOWN = {module_name(path) for path in sources(*PACKAGES)}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("server", ("server", "engine")),
        ("engine", ("engine", "kernels")),
        ("kernels", ("kernels",)),
    ],
)
def test_imports_go_from_server_to_engine_to_kernels(package, allowed):
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources(package)
        for name in imports(parse(path), KNOWN)
        if name.startswith("mambad.")
        and name.split(".")[1] not in allowed
        and module_name(path) not in TORCH_COMMANDS
    ]
    assert wrong == []


def test_server_and_the_torch_free_engine_reach_no_torch():
    reached: dict[str, str] = {}
    graph = {module_name(path): set(imports(top_level(parse(path)), KNOWN)) for path in sources(*PACKAGES)}
    starts = [name for name in graph if name.startswith("mambad.server")]
    starts += [f"mambad.engine.{name}" for name in TORCH_FREE_ENGINE]
    assert set(starts) <= graph.keys(), "a module of the list is gone"
    waiting = [(name, name) for name in starts]
    while waiting:
        name, way = waiting.pop()
        if name not in reached:
            reached[name] = way
            waiting += [(target, f"{way} → {target}") for target in graph.get(name, ())]
    wrong = [way for name, way in reached.items() if name.split(".")[0] == "torch"]
    assert wrong == []


def test_a_serving_front_end_has_no_torch_in_memory():
    code = "import sys, mambad.server.cli_serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_some_commands_import_more_of_the_engine_and_late():
    allowed = {f"mambad.engine.{name}" for name in TORCH_FREE_ENGINE}
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources("server")
        for name in imports(
            top_level(parse(path)) if module_name(path) in TORCH_COMMANDS else parse(path), KNOWN
        )
        if name.startswith("mambad.engine") and name not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("folders", "is_test"), [(("server", "engine", "kernels"), False), (("tests", "configs"), True)]
)
def test_what_is_imported_is_declared(folders, is_test):
    listed = list(PROJECT["project"]["dependencies"])
    for extra in ("test", "monitoring") if is_test else ("otel",):
        listed += PROJECT["project"]["optional-dependencies"][extra]
    import_names = {
        "litellm-core": "litellm", "pyyaml": "yaml", "pyzmq": "zmq", "pydantic-ai-slim": "pydantic_ai",
        "opentelemetry-sdk": "opentelemetry",
    }  # fmt: skip
    if is_test:
        # Clients run in environments of their own.
        files = sorted((ROOT / "tests" / "conformance").glob("requirements-*.txt"))
        lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
        listed += [line for line in lines if "==" in line]
    names = [normal_name(text) for text in listed]
    declared = {import_names.get(name, name.replace("-", "_")) for name in names}
    ours = {"mambad", "mambad_ray"} | {path.stem for path in sources("tests")}
    wrong = sorted(
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(*folders)
        for name in {name.split(".")[0] for name in imports(parse(path), KNOWN)}
        if name not in declared | ours | sys.stdlib_module_names
    )
    assert wrong == []


@pytest.mark.parametrize("package", ["server", "engine", "kernels"])
def test_only_sub_folders_have_an_init_file(package):
    assert not (ROOT / package / "__init__.py").exists()
    folders = {path.parent for path in sources(package)} - {ROOT / package, ROOT / "server/entry"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_folder_with_a_module_is_packaged():
    paths = sources("server", "engine", "kernels")
    folders = {module_name(path.parent / "x").removesuffix(".x") for path in paths}
    # What is mapped elsewhere stands under its target.
    mapped = {"mambad." + path.replace("/", "."): name for name, path in SETUPTOOLS["package-dir"].items()}
    expected = {mapped.get(folder, folder) for folder in folders}
    assert expected - {"mambad"} <= set(SETUPTOOLS["packages"])
    assert "mambad.configs" in SETUPTOOLS["packages"]
    missing = [name for name in SETUPTOOLS["packages"] if not _folder_of(name).is_dir()]
    assert missing == []


def _folder_of(package: str) -> Path:
    mapping = SETUPTOOLS["package-dir"]
    if package in mapping:
        return ROOT / mapping[package]
    parent, _, name = package.rpartition(".")
    return _folder_of(parent) / name


def test_every_file_of_data_is_packaged():
    patterns = SETUPTOOLS["package-data"]
    for package in ("server", "engine", "kernels"):
        assert (ROOT / package / "py.typed").exists()
        assert "py.typed" in patterns[f"mambad.{package}"]
    data = [
        path
        for package in ("server", "engine", "kernels")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".so"}
    ]
    packaged = {
        path
        for package, globs in patterns.items()
        for pattern in globs
        for path in _folder_of(package).glob(pattern)
    }
    assert sorted(str(path.relative_to(ROOT)) for path in data if path not in packaged) == []


def test_every_file_opens_with_what_it_is():
    wrong = [str(path) for path in sources() if path.stat().st_size and not ast.get_docstring(parse(path))]
    assert wrong == []


def test_no_file_is_too_long():
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {path: length for path, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_too_long_or_takes_too_much():
    wrong = []
    for path in sources(*PACKAGES):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                count = len([item for item in arguments if item.arg not in ("self", "cls")])
                is_kernel = path.is_relative_to(ROOT / "kernels")
                if length > MAX_FUNCTION_LINES or (count > MAX_PARAMETERS and not is_kernel):
                    wrong.append(f"{path}:{node.lineno} {node.name}: {length} lines, {count} parameters")
    assert wrong == []


def test_no_file_names_a_development_machine_or_a_registry():
    folders = "|".join(("work", "farm", "home", "root", "opt", "Users"))
    hosts = "|".join(("pypi", "pythonhosted", "pytorch", "npmjs", "docker"))
    pattern = re.compile(rf"(?<![\w.~$}}])/({folders})/\w|\b({hosts})\.(org|io|com)\b")
    # The one that a user's build of the image needs: docs/decisions/0011-image.md.
    allowed = f"ARG TORCH_INDEX=https://download.{'pytorch'}.org/whl/cpu"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    kinds = {".py", ".c", ".h", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".json", ""}
    paths = [ROOT / name for name in listed if Path(name).suffix in kinds]
    paths = [path for path in paths if path.is_file() and path.stat().st_size < 2**20]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line) and line != allowed
    ]
    assert wrong == []


def test_constraints_pin_every_direct_dependency():
    project = PROJECT["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    assert {normal_name(text) for text in wanted} - pinned == set()
