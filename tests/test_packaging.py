"""The Dockerfile and the CI run agree with the code that they package."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.settings_source import load_settings
from tests.commands import ROOT
from tests.serving import serve

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def image_environment() -> dict[str, str]:
    found = re.search(r"^ENV (.+)$", DOCKERFILE, re.MULTILINE)
    assert found
    return dict(pair.split("=", 1) for pair in shlex.split(found[1]))


def test_the_image_listens_everywhere_and_writes_to_its_volume_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in image_environment().items():
        if name.startswith("TIDEGATE_"):
            monkeypatch.setenv(name, value)
    settings = load_settings().settings
    assert settings.server.host == "0.0.0.0"
    assert settings.store.url.get_secret_value().startswith("sqlite:////data/")
    assert "\nVOLUME /data\n" in DOCKERFILE
    assert re.search(r"^USER [1-9]\d*:", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_what_the_image_serves(status: int, healthy: bool) -> None:
    async def healthz(request: Request) -> Response:
        return Response(status_code=status)

    found = re.search(r"HEALTHCHECK .*?CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    assert found
    program, *arguments = json.loads(found[1])
    assert program == "python"
    with serve(Starlette(routes=[Route("/healthz", healthz)])) as served:
        ran = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "TIDEGATE_SERVER__PORT": str(served.port)},
            capture_output=True,
            timeout=30,
        )
    assert (ran.returncode == 0) is healthy


def test_the_image_is_built_from_what_is_not_ignored() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert {line[1:] for line in ignored.splitlines() if line.startswith("!")} == sources


def test_ci_runs_the_readmes_own_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert "grep --max-count=1 '&& pytest$' README.md" in text
