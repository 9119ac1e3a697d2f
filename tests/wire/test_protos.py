"""The generated code in monitor/v1 is what the .proto files say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "monitor" / "v1"


def run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def generated_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*_pb2*.py*")}


@pytest.fixture
def protoc_python() -> Path:
    """The interpreter with the pinned grpcio-tools, which cannot live beside our protobuf."""
    named = os.environ.get("PROTOC_PYTHON")
    python = Path(named) if named else ROOT / ".venv-protoc" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run `make protos`, or name another in PROTOC_PYTHON")
    return python


def test_regenerated_code_equals_the_committed_code_byte_for_byte(protoc_python, tmp_path):
    protos = sorted(proto.relative_to(ROOT) for proto in ROOT.glob("protos/monitor/v1/*.proto"))
    services = [proto for proto in protos if "\nservice " in (ROOT / proto).read_text("utf-8")]
    protoc = (protoc_python, "-m", "grpc_tools.protoc", "-Iprotos")
    run(*protoc, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos)
    run(*protoc, f"--grpc_python_out={tmp_path}", *services)

    committed = generated_files(GENERATED)
    fresh = generated_files(tmp_path / "monitor" / "v1")

    remedy = "run `make protos` and commit monitor/v1"
    assert sorted(committed) == sorted(fresh), remedy
    stale = [name for name in fresh if committed[name] != fresh[name]]
    assert not stale, f"{stale} differ from the .proto files: {remedy}"
