"""What a traceback of the user's error shows: the user's frames, and the door that was opened."""

from __future__ import annotations

import pickle
import traceback

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import InternalError, SpcompError, front_door


@T.prim_func
def ones(a: T.handle) -> None:
    A = T.match_buffer(a, (4,), "float32")
    for i in range(4):
        A[i] = 1.0


def wrong_script():
    @T.prim_func
    def f(a: T.handle) -> None:
        A = T.match_buffer(a, (4,), "float32")
        A[0] = B[1]  # noqa: F821


def wrong_class():
    @T.ir_module
    class Module:
        @T.prim_func
        def f(a: T.handle) -> None:
            A = T.match_buffer(a, (4,), "float32")
            A[0] = 1.0

        @T.host
        def main(a: T.handle) -> None:
            T.launch("g")


WRONG = {
    "script": wrong_script,
    "class": wrong_class,
    "step": lambda: spcomp.Schedule(ones).split("q", 4),
    "question": lambda: spcomp.Schedule(ones).get_producers("q"),
    "schedule": lambda: spcomp.Schedule(3),
    "notation": lambda: spcomp.compile("C[i] = A[i, j] + 1 @ 2"),
    "compile": lambda: spcomp.compile(ones, check="x"),
    "parse": lambda: spcomp.parse("x = "),
    "call": lambda: spcomp.compile(ones)(np.zeros(3, "float32")),
    "bind": lambda: spcomp.compile(ones).bind(a=3),
    "einsum": lambda: spcomp.einsum("ij,jk->ik", np.zeros((2, 3)), np.zeros((2, 3))),
}


def ours(error):
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_ours(frame)]


def _is_ours(frame):
    return frame.filename.startswith(spcomp.__path__[0])


@pytest.mark.parametrize("act", WRONG.values(), ids=WRONG)
def test_an_error_of_the_user_shows_one_frame_of_the_package(act, monkeypatch):
    monkeypatch.delenv("SPCOMP_DEBUG", raising=False)
    with pytest.raises(SpcompError) as caught:
        act()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len(ours(caught.value)) == 1
    assert _is_ours(frames[-1])
    assert frames[-2].filename == __file__


def test_all_frames_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("SPCOMP_DEBUG", "1")
    with pytest.raises(SpcompError) as caught:
        wrong_script()
    assert len(ours(caught.value)) > 5


def test_frames_of_the_users_functions_stay_and_so_do_those_of_other_errors():
    def below():
        raise SpcompError("from a callback")

    namespace = {"below": below}
    exec(compile("def inside():\n    below()", spcomp.__file__, "exec"), namespace)
    with pytest.raises(SpcompError) as caught:
        front_door(namespace["inside"])()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["opened", "below"]

    def breaks():
        raise InternalError("a pass", "no law holds")

    with pytest.raises(InternalError) as internal:
        front_door(breaks)()
    assert traceback.extract_tb(internal.value.__traceback__)[-1].name == "breaks"


def test_a_public_function_is_pickled_by_its_public_name():
    for function in (spcomp.compile, spcomp.read, spcomp.parse):
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__
