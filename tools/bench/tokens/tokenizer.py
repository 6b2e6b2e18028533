"""The tokenizer for token counts: gpt-tokenizer, in the version that package-lock.json names."""

import json
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parent.parent.parent / "target/tokens"
# Encoding that is used by default.
OURS = "o200k_base"
INSTALL_SECONDS = 600
COUNT_SECONDS = 60


def install():
    """Installs the package below target/tokens, unless it is already installed. The package contains its vocabulary."""
    pins = (HERE / "package-lock.json").read_text()
    stamp = WORK / "installed"
    if not (stamp.exists() and stamp.read_text() == pins):
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, WORK)
        print("installing gpt-tokenizer", flush=True)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--silent", "--prefix", str(WORK)]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(pins)
    # A module finds its packages starting from its own folder.
    shutil.copy(HERE / "count.mjs", WORK)


def tokens(texts: list[str], encoding: str = OURS) -> list[int]:
    """Number of tokens of each text."""
    counted = subprocess.run(["node", str(WORK / "count.mjs"), encoding], input=json.dumps(texts), text=True,
                             capture_output=True, check=True, timeout=COUNT_SECONDS)
    return json.loads(counted.stdout)
