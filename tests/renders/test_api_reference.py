"""The API reference shows docstrings as lists and code, not as one paragraph."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pdoc", reason="the API reference needs the extra docs")

SCRIPT = Path(__file__).parents[2] / "renders" / "api_reference.py"


@pytest.fixture(scope="module")
def reference() -> Any:
    spec = spec_from_file_location("api_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arguments_are_a_list_and_code_follows_one_colon(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "modules", lambda: ["documented"])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "documented.py").write_text(
        '"""For example::\n\n    code = 1\n"""\n\n\nclass Env:\n    """A class.\n\n    ## Arguments\n'
        "    split: first::second,\n        go on.\n    low, high: two.\n\n    ## Rewards\n"
        "    goal: 1.\n    hole: 0.\n\n    Raises:\n"
        '        ValueError: bad.\n    """\n',
        encoding="utf-8",
    )
    try:
        assert reference.write(tmp_path / "docs") == 1
    finally:
        sys.modules.pop("documented", None)
    page = (tmp_path / "docs" / "documented.html").read_text(encoding="utf-8")
    assert "For example:</p>" in page
    assert "<li><strong>split:</strong> first::second,\ngo on.</li>" in page
    assert "<li><strong>low, high:</strong> two.</li>" in page
    assert "<li><strong>ValueError:</strong>  bad.</li>" in page
    assert "goal: 1.\nhole: 0.</p>" in page, "only arguments and attributes are lists"
    assert ".pdoc .return-annotation{white-space:pre-wrap;" in page, "a signature wraps"
