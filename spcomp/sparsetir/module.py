"""Before the route: ``tvm.IRModule``, functions by name, each with the Schedule that made it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import NoneType
from typing import Any

from spcomp.errors import ArgumentError, expect
from spcomp.ir.func import Func
from spcomp.ir.structural import structural_equal
from spcomp.schedule.schedule import Schedule

MOST_ORIGINS = 64  # how many functions' Schedules are remembered after they are returned
_origins: OrderedDict[int, Schedule] = OrderedDict()  # by id of its function, which it keeps alive


class IRModule(MutableMapping[str, Func]):
    """Functions by name; a single function is called ``main``.

    The module keeps the Schedule that made each function. A function that the compiler lowered is
    trusted, also after it was taken out and put in again; any other is treated as the user's.
    """

    def __init__(self, functions: dict[str, Func] | None = None) -> None:
        expect("functions", functions, (Mapping, NoneType), "functions by name")
        self.schedules: dict[str, Schedule] = {}
        self.update(functions or {})

    @staticmethod
    def from_expr(func: Func) -> IRModule:
        """Return a module with *func* as ``main``; raises ArgumentError if it is not a function."""
        return IRModule({"main": func})

    @property
    def functions(self) -> dict[str, Func]:
        """The functions by name."""
        return dict(self)

    def map(self, change: Callable[[Schedule], Schedule]) -> IRModule:
        """Return a module with *change* applied to the Schedule of each function."""
        module = IRModule()
        module.schedules = {name: change(schedule) for name, schedule in self.schedules.items()}
        return module

    def map_funcs(self, change: Callable[[Any], Func]) -> IRModule:
        """Return a module with *change* applied to each function."""

        def changed(schedule: Schedule) -> Schedule:
            func = change(schedule.func)
            return schedule if structural_equal(func, schedule.func) else Schedule(func)

        return self.map(changed)

    def script(self, *, show_meta: bool = False) -> str:
        """Return the functions in the script language; for *show_meta* see ``Func.script``."""
        return "\n\n".join(func.script(show_meta=show_meta) for func in self.values())

    def show(self) -> None:
        """Write the functions to stdout."""
        for func in self.values():
            func.show()

    def __getitem__(self, name: str) -> Func:
        schedule = self.schedules[name]
        _origins[id(schedule.func)] = schedule
        while len(_origins) > MOST_ORIGINS:
            _origins.popitem(last=False)
        return schedule.func

    def __setitem__(self, name: str, func: Func) -> None:
        if not isinstance(func, Func):
            raise ArgumentError(
                f"argument {name}: got {type(func).__name__}, expected a function",
                hint="decorate it with @T.prim_func",
            )
        self.schedules[name] = _origins.get(id(func)) or Schedule(func)

    def __delitem__(self, name: str) -> None:
        del self.schedules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)

    def __repr__(self) -> str:
        return f"<IRModule of {', '.join(self)}>"


def as_module(mod: Any) -> IRModule:
    """Return *mod*, an IRModule or a function, as an IRModule; raises ArgumentError."""
    return mod if isinstance(mod, IRModule) else IRModule.from_expr(mod)
