"""The hooks of the plugin. The entry point in ``pyproject.toml`` names this module."""

from quasar import hookimpl


@hookimpl
def quasar_drafters():
    """Return the drafter classes of this plugin."""
    from quasar_template.echo import Echo  # imported here, so that `quasar --help` stays quick

    return [Echo]
