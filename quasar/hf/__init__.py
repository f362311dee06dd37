"""Everything that imports transformers."""

import logging

# transformers imports torchao, which warns about CUDA extensions it cannot load and trips a deprecation inside torch;
# neither concerns the user of this package.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
