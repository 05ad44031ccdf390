"""Installs the other proxies, each in an environment of its own, never beside Tidegate.

    python -m tests.benchmarks.install [NAME ...]

Versions are pinned. LiteLLM 1.82.7, 1.82.8 and 1.107.0 were compromised and are refused.
"""

import subprocess
import sys

from tests.benchmarks.targets import ENVIRONMENTS

PACKAGES = {
    "litellm": "litellm[proxy]==1.106.12",
    "context-guardian": "context-guardian==0.12.0",
    "headroom": "headroom-ai[proxy]==0.42.0",
}
COMPROMISED = frozenset({"1.82.7", "1.82.8", "1.107.0"})


def install(name: str) -> int:
    """Pip's exit code."""
    package = PACKAGES[name]
    assert package.rpartition("==")[2] not in COMPROMISED
    # headroom brings a LiteLLM of its own choice.
    refused = [f"litellm!={version}" for version in sorted(COMPROMISED)]
    folder = ENVIRONMENTS / name
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", package]
    return subprocess.run(
        [*pip, *(refused if "litellm" in name or name == "headroom" else ())]
    ).returncode


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in PACKAGES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(PACKAGES)}")
    for chosen in sys.argv[1:] or PACKAGES:
        if code := install(chosen):
            print(f"{chosen} was not installed (pip ended with {code})", file=sys.stderr)
