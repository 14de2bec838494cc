"""Schedules of the real code, explored: who goes on, who stalls, whose answer is lost, who dies.

The pieces, from the bottom up:

* ``store``: a storage in memory with the semantics of S3, under the real retry layer;
* ``scheduler``: one actor at a time, each stopped at every request; clock, sleep and randomness are its own;
* ``ground``: the lakehouse that every schedule begins with, made once;
* ``actors``: what processes do, on the real ``Lakehouse`` and the real pipelines;
* ``reading`` and ``oracle``: what must hold afterwards, read without the product's code where that is possible;
* ``scenarios`` and ``explore``: which actors together, all schedules within bounds, or random ones by seed;
* ``replay``: one schedule again, request by request (``python -m tests.simulation.replay``);
* ``mutations``: each repair taken out again, and where a schedule against what is left is to be found;
* ``model``, ``processes`` and ``scopes``: the rules of the fences alone, as a model whose states are all visited.
"""
