"""Beside a call of index notation: what was decided for it, and why, as text."""

from __future__ import annotations

from typing import Any

from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.arguments import CallArguments
from spcomp.kernels.notation.fused import explain_rows
from spcomp.kernels.notation.parts import format_texts
from spcomp.kernels.notation.planned import CompiledVersion
from spcomp.kernels.notation.runner import Runner, SplitVersion
from spcomp.kernels.protocol import Runnable
from spcomp.notation.explain import explain


def explained(
    runner: Runner,
    version: CompiledVersion | SplitVersion,
    arguments: CallArguments,
    bound: Runnable | None = None,
) -> str:
    """Return the decisions of *version*, which runs for *arguments* if there are any.

    *bound*: its kernel with arguments bound, if a tuner decides for these.
    """
    if isinstance(version, SplitVersion):
        runners = (piece.runner for piece in version.pieces)
        return "\n".join(explained(piece, piece.last, {}) for piece in runners)
    runner.chosen(version, arguments)
    planned, planner, options = version.planned, runner.planner, runner.options
    operands = {name: argument.operand for name, argument in planned.arguments.items()}
    kernel = version.kernel if bound is None else bound
    stored = format_texts(kernel, version.stored)
    levels = version.stored.keys() & (planner.wanted.keys() - planner.stored.keys())
    stored |= {name: str(planner.wanted[name]) for name in levels}
    text = explain(planned.plans, operands, planned.converted, planner.semiring, stored)
    text = f"floats in any order (fast_math)\n{text}" if options.fast_math else text
    if options.tuned is not None:
        kept = f"{', '.join(stored)} comes in a format that is kept"
        kept = kept if stored else "the arrays of a bound matrix may change"
        text = f"{kernel.note or f'nothing is chosen: {kept}'}\n{text}"
    if isinstance(version.kernel, Kernel) and (rows := explain_rows(planned, options)):
        text = f"{text}\n{rows}"
    return _on_device(runner, version, arguments, text)


def _on_device(
    runner: Runner, version: CompiledVersion, arguments: CallArguments, text: str
) -> str:
    """Return *text* with what a GPU runs for *arguments*: steps, launches, what data they suit.

    Without all arguments, and with index vectors of results, whose sizes only a call knows, they
    are those for any data.
    """
    kernel = version.kernel
    if isinstance(kernel, Kernel) and kernel.launches:
        if values := _values(runner, version, arguments):
            kernel = kernel.version(values, whole=False)
        parts = kernel.known, text, kernel.trace, kernel.explain_launches()
        return "\n".join(part for part in map(str, parts) if part).rstrip()
    launched = kernel.explain_launches()
    return f"{text}\n{launched}".rstrip() if launched else text


def _values(runner: Runner, version: CompiledVersion, arguments: CallArguments) -> dict[str, Any]:
    """Return what the kernel of *version* gets; nothing unless all is known before a call."""
    given = all(argument.source in arguments for argument in version.arguments)
    if not given or runner.scatters.rows:
        return {}
    return {name: make(arguments[at].value) for name, at, make in version.arguments}
