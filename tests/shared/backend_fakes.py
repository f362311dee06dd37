"""Backends that multiply nothing, and a clock that says what it is told: for tests of the choice between them."""

from typing import ClassVar

from quasar.core.backends import Backend, Built
from quasar.models import backend_choice


def fake(label, unusable=None, refuses=None, **traits):
    """Return a backend that runs the model as it is, and remembers what it was asked to build.

    Args:
        label: its name.
        unusable: what it says of this machine.
        refuses: what it says of every model.
        traits: attributes of the class.
    """
    reasons = {"unusable": unusable, "refuses": refuses}

    class Fake(Backend):
        """Does nothing well."""

        name = label
        built: ClassVar = []

        @classmethod
        def unusable(cls):
            return reasons["unusable"]

        @classmethod
        def refuses(cls, model):
            return reasons["refuses"]

        @classmethod
        def build(cls, model, precision, *, quantize_lm_head=False, keep=(), activation_bits=8):
            cls.built.append((precision, quantize_lm_head))
            return Built(model, label, ("a",) if precision == "int8" else ())

    for trait, value in traits.items():
        setattr(Fake, trait, value)
    return Fake


class Stopwatch(dict):
    """Stands for the measuring: holds the seconds to report by name, and notes which candidates were measured.

    Attributes:
        file: where ``backend_choice`` keeps measurements, in a home of the test's own.
        measured: names of the candidates of every call.
    """

    def __init__(self, tmp_path, monkeypatch):
        super().__init__()
        self.file, self.measured = tmp_path / "home" / "backends.json", []
        monkeypatch.setenv("QUASAR_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(backend_choice, "_measure", self)

    def __call__(self, candidates):
        self.measured.append(sorted(candidates))
        return {name: self.get(name, 1.0) for name in candidates}
