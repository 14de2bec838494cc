"""The judge: random public operations on real lakehouses; every version has to be what the model says.

    world.py        a lakehouse of some size on some storage, and its model
    model.py        one plain dictionary for each version
    operations/     what is done: small classes, each with its effect on the model
    tree.py         reads every version with pyarrow alone, and proves the invariants of docs/format.md
    runner.py       draws operations by a seed, repeats them from a list, makes a list shorter
    found/          what it found, as lists of operations: each is done again by a test

What it reads with (``tree``, ``wire``, ``files``) imports nothing of the product: a proof shares no code with what it
proves.
"""
