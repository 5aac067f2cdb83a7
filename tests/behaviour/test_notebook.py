"""The quick-start notebook runs from top to bottom, and its cells run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.behaviour, pytest.mark.timeout(300)]

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
AGAIN = ("srl_ray.compose", "srl_ray.run(config)", "class Corridor", "corridor = srl_ray.run")


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def execute(notebook: Any, folder: Path) -> dict[str, Any]:
    """Run all cells in a fresh kernel; returns source → cell."""
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    return {cell.source: cell for cell in notebook.cells if cell.cell_type == "code"}


def text_of(cells: dict[str, Any], part: str) -> str:
    """What the last cell with this in its source printed."""
    cell = [cell for source, cell in cells.items() if part in source][-1]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def kinds_of(cells: dict[str, Any], part: str) -> set[str]:
    cell = [cell for source, cell in cells.items() if part in source][-1]
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def test_the_notebook_runs_and_an_edited_environment_is_the_one_that_runs(tmp_path: Path) -> None:
    notebook = read()
    again = [cell.copy() for cell in notebook.cells if any(part in cell.source for part in AGAIN)]
    for cell in again:
        cell.id = f"again-{cell.id}"
        cell.source = cell.source.replace("length = 8", "length = 1") + "\n# again"
    leftover = "import ray; print(ray.available_resources()['CPU'], 'CPUs are free')"
    notebook.cells[-1:-1] = [*again, nbformat.v4.new_code_cell(leftover)]
    cells = execute(notebook, tmp_path)

    assert "stop.env_steps=10000 reached" in text_of(cells, "srl_ray.run(config)\nprint")
    evaluation = text_of(cells, "from srl_ray.evaluation").splitlines()
    initial, trained = (float(line.split("return")[1].split(",")[0]) for line in evaluation)
    assert trained > initial
    assert "image/png" in kinds_of(cells, "draw_curves")
    assert "text/html" in kinds_of(cells, "render_episodes")
    assert "image/png" in kinds_of(cells, "film.sheet")
    assert "image/gif" in kinds_of(cells, "draw_frames")
    corridor = text_of(cells, "corridor = srl_ray.run").splitlines()[-1]
    assert float(corridor.split(": ")[1].split()[0]) > 0.5, "one step to the goal pays 1: the edited class was used"
    assert "stop.env_steps=10000 reached" in text_of(cells, "print(result.reason)\n# again")
    assert text_of(cells, "CPUs are free").startswith("2.0"), "after each run nothing of it is left"
    runs = [path for path in (tmp_path / "runs" / "cartpole").iterdir() if not path.is_symlink()]
    assert len(runs) == 2, "the second training is a run of its own"


def test_the_notebook_is_stored_without_outputs() -> None:
    assert all(not cell.outputs for cell in read().cells if cell.cell_type == "code")
