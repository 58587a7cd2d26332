"""The package as a whole: documentation that runs, types, what an import costs."""

import ast
import contextlib
import doctest
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import tensorcache as tc

from conftest import ROOT


def documented():
    """Every docstring of the package, by name."""
    found = {"tensorcache": tc.__doc__, "tensorcache.errors": tc.errors.__doc__}
    with contextlib.suppress(ImportError):  # without torch
        import tensorcache.torch as ops

        found |= {"torch": ops.__doc__} | {f"torch.{name}": getattr(ops, name).__doc__ for name in ops.__all__}
    for name in tc.__all__:
        thing = getattr(tc, name)
        if isinstance(thing, str):
            continue
        found[name] = thing.__doc__
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    found[f"{name}.{member}"] = value.__doc__
    return found


@pytest.mark.parametrize("name", documented())
def test_examples_run(name):
    text = documented()[name]
    assert text and text.strip(), f"{name} has no docstring"
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test).failed == 0


def test_classes_and_main_functions_have_examples():
    without = {name for name, text in documented().items() if ">>>" not in text and "." not in name}
    assert without <= {
        "CorruptError", "DivergedError", "Error", "InvalidArgumentError", "IoError", "NotFoundError", "UnsupportedError",
        "StateBytes", "TextStream", "TokenStream", "batch_logits", "export_model", "import_model", "info",
    }  # fmt: skip


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_brings_neither_numpy_nor_torch():
    assert run_python("import sys, tensorcache; print([m for m in ('numpy', 'torch', 'json') if m in sys.modules])") == "[]\n"


def test_the_module_needs_no_torch():
    (module,) = pathlib.Path(tc.__file__).parent.glob("_core*.so")
    needed = subprocess.run(["readelf", "-d", module], check=True, capture_output=True, text=True).stdout
    assert "NEEDED" in needed and "torch" not in needed


def test_version_is_that_of_the_headers():
    header = (ROOT / "include/tensorcache/version.h").read_text()
    assert re.search(r'TENSORCACHE_VERSION "([^"]+)"', header).group(1) == tc.__version__


def test_types(tmp_path):
    """The package with its stub under --strict, and a program that uses it, rightly but for two lines."""
    (tmp_path / "program.py").write_text(
        "import numpy as np\n"
        "import numpy.typing as npt\n"
        "import tensorcache as tc\n"
        "model = tc.Model('folder', weights='int8', cache={'window': 4})\n"
        "session = model.session()\n"
        "session.prefill(np.arange(3))\n"
        "session.prefill([1, 2])\n"
        "text: str = ''.join(session.generate('Hi', stop=['.'], temperature=0.5))\n"
        "tokens: list[int] = list(session.generate_tokens(None, max_tokens=3))\n"
        "floats: npt.NDArray[np.float32] = session.logits\n"
        "integers: npt.NDArray[np.int32] = session.logits\n"
        "session.decode('no')\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "-p", "tensorcache", "-p", "program"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [line.split(" error: ")[0] for line in checked.stdout.splitlines() if " error: " in line]
    assert errors == ["program.py:11:", "program.py:12:"], checked.stdout


def test_the_stub_names_what_the_module_has():
    (stub,) = pathlib.Path(tc.__file__).parent.glob("_core.pyi")
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            named = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            assert {name for name in vars(getattr(tc._core, node.name)) if not name.startswith("_")} <= named
        elif isinstance(node, ast.FunctionDef):
            assert callable(getattr(tc._core, node.name))
