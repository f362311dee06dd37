"""A drafter that remembers what came after each pair of tokens."""

from quasar import hookimpl


@hookimpl
def quasar_drafters():
    """Return the drafter."""
    from quasar_bigram_cache.drafter import BigramCache

    return [BigramCache]
