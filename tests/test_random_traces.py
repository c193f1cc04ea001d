"""Whatever legal steps a schedule is made of, the program means what it meant."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

import spcomp
from spcomp.errors import SpcompWarning
from spcomp.ir.interpret.program import interpret
from spcomp.ir.verify.program import verify
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import STEPS
from tests.corpus_base import fresh
from tests.programs import PROGRAMS
from tests.random_traces import PROPOSALS, composed

TRACES = int(os.environ.get("SPCOMP_RANDOM_TRACES", "2000"))  # more of them, by hand
EACH = -(-TRACES // len(PROPOSALS))
COMPILED = 7  # every so many is compiled as well
SINGLE = [program for program in PROGRAMS if not program.assembles]
ONLY = {  # the programs of a step that hardly any takes
    "stage_weights": ["sampled_attention"],
    "match_to_alloc": ["argmax"],  # an argument between two statements
}


def test_a_step_of_every_kind_is_proposed():
    """But for what chance does not make legal: only assembly has workspaces, and a softmax is
    three nests in one loop (test_online_softmax has its programs)."""
    assert set(PROPOSALS) == set(STEPS) - {"share_workspace", "online_softmax"}


@pytest.mark.parametrize("kind", PROPOSALS)
@pytest.mark.sample(16)
def test_random_traces_with_a_step_keep_the_meaning(kind, request):
    programs = set()
    options = request.config.option
    each = EACH if options.all else EACH // 3 if options.long else EACH // 4
    able = [program for program in SINGLE if program.name in ONLY.get(kind, [program.name])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)  # false spatial claims are in the corpus
        for number, (program, composer, inputs) in enumerate(composed(kind, each, able)):
            programs.add(program.name)
            schedule = composer.schedule
            what = f"after {schedule.trace}".replace("\n", "; ")
            verify(schedule.func, what)
            names = {param.name for param in schedule.func.params}
            args = {name: value for name, value in fresh(inputs).items() if name in names}
            with np.errstate(all="ignore"):
                results = interpret(schedule.func, args)
            gone = {k: v for k, v in program.expected(inputs).items() if k not in names}
            program.check(inputs, {**args, **results, **gone}, program.dtypes[0], what)
            assert Trace.from_json_lines(schedule.trace.to_json_lines()) == schedule.trace
            if number % COMPILED == 0:
                args = fresh(inputs)
                spcomp.compile(schedule)(*(args[p.name] for p in schedule.func.params))
                program.check(inputs, {**args, **gone}, program.dtypes[0], f"compiled {what}")
    assert len(programs) >= min(3, len(able))
