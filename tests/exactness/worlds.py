"""The target models, draft models and shapes of drafts that the tests share."""

from __future__ import annotations

from ring import World
from toys import Twig, point, random_table

TARGET = random_table(3, seed=1)
DRAFT, OTHER, THIRD = (random_table(3, seed) for seed in (2, 3, 4))
WORLD = World(TARGET, eos=2)

WIDE = World(random_table(4, seed=5))
WIDE_DRAFT, WIDE_OTHER = random_table(4, seed=6), random_table(4, seed=7, sharpness=0.5)

CHAIN = (Twig(0), Twig(1), Twig(2))
POINT_CHAIN = (point(0), point(1), point(2))
POINT_TREE = (point(0), point(0, 1), point(1), point(2), point(2, 1))
POINT_FIRST = (point(0), Twig(0), point(1), Twig(1), point(2), Twig(2))
POINT_LAST = (Twig(0), point(0), Twig(1), point(1), Twig(2), point(2))
SIBLINGS = (Twig(0), Twig(0))
TWO_A_LEVEL = (Twig(0), Twig(0), Twig(1), Twig(1), Twig(2), Twig(2))
THREE_LAWS = (Twig(0), Twig(0, 1), Twig(0, 2), Twig(1), Twig(2, 1))
