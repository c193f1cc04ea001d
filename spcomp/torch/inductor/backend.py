"""For users of torch.compile: a backend, the same for inductor as a whole, and what it replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo import reset
from torch._inductor import config, list_mode_options

from spcomp.errors import ArgumentError, expect
from spcomp.torch.inductor.cost import USUAL, Costs
from spcomp.torch.inductor.passes import Pass, is_ours, passes
from spcomp.torch.inductor.rewrite import Finding


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Return *module* compiled by inductor, with aggregation along edges by our kernels.

    *mode*, *options*: those of ``torch.compile`` for inductor. An option ``spcomp`` is the
    :class:`Costs` that decide.
    """
    patches = dict(options or {})
    ours = Pass(_costs(patches))
    patches.pop("spcomp", None)
    from torch._inductor.compile_fx import compile_fx  # loads slowly

    _register()
    if mode not in (None, "default"):
        patches = {**list_mode_options(mode), **patches}
    others = (p for p in passes() if not isinstance(p, Pass))
    patches["joint_custom_pre_pass"] = [*others, ours]
    return compile_fx(module, inputs, config_patches=patches)


def eager_backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Any:
    """Return *module* with the same aggregations by our kernels, the rest as PyTorch runs it.

    It generates no code, and needs no C++ compiler. *options*: as in :func:`backend`.
    """
    for name in (options or {}).keys() - {"spcomp"}:
        raise ArgumentError(
            f"argument options: got {name!r}, which is no option of spcomp_eager",
            hint='its only one is options={"spcomp": spcomp.torch.Costs(...)}',
        )
    return _eager(Pass(_costs(options or {})))(module, inputs)


def _costs(options: Mapping[str, Any]) -> Costs:
    """Return what decides, of *options*; raises ArgumentError."""
    hint = 'write options={"spcomp": spcomp.torch.Costs(...)}'
    costs: Costs = options.get("spcomp", USUAL)
    expect('options["spcomp"]', costs, Costs, "Costs", hint=hint)
    return costs


def _eager(ours: Pass) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition as part
    from torch._inductor.decomposition import select_decomp_table

    def run(module: torch.fx.GraphModule, _: Any) -> Any:
        module.recompile()
        return make_boxed_func(module)

    def infer(module: torch.fx.GraphModule, inputs: Any) -> Any:
        ours(module.graph)
        return run(module, inputs)

    def parted(module: torch.fx.GraphModule, inputs: Any, **more: Any) -> Any:
        ours(module.graph)
        module.recompile()
        return part(module, inputs, compiler="inductor", **more)

    return aot_autograd(
        fw_compiler=run,
        inference_compiler=infer,
        partition_fn=parted,
        decompositions=select_decomp_table(),
    )


def _register() -> None:
    from spcomp.torch.inductor.wrapper import register  # loads slowly

    register()


def enable() -> None:
    """Let ``torch.compile`` without a backend give aggregation along edges to our kernels.

    What was compiled before stays as it is.
    """
    _register()
    if not is_ours():
        config.joint_custom_pre_pass = [*passes(), Pass()]


def disable() -> None:
    """Undo :func:`enable`, for what is compiled from now on."""
    others = [known for known in passes() if not isinstance(known, Pass)]
    config.joint_custom_pre_pass = others or None


@dataclass(slots=True)
class Explanation:
    """What became of the aggregations in the graphs of a model; ``str`` of it is a table.

    *graphs*: the findings in each graph. With gradients, a graph is forward and backward in one.
    """

    graphs: list[list[Finding]] = field(default_factory=list)

    @property
    def replaced(self) -> list[Finding]:
        """The findings that were replaced."""
        return [finding for graph in self.graphs for finding in graph if finding.by]

    @property
    def left(self) -> list[Finding]:
        """The findings that were left to torch."""
        return [finding for graph in self.graphs for finding in graph if not finding.by]

    def __str__(self) -> str:
        lines = []
        for number, findings in enumerate(self.graphs, 1):
            lines.append(f"graph {number}: {'' if findings else 'no aggregation'}".rstrip())
            lines += [f"  {finding}" for finding in findings]
        nothing = "no graphs: torch.compile took nothing of it, such as products of sparse tensors"
        return "\n".join(lines) or nothing


def explain(
    model: Callable[..., Any], *args: Any, costs: Costs = USUAL, **kwargs: Any
) -> Explanation:
    """Return which aggregations of *model*, called with these arguments, our kernels compute.

    It runs the model once, and as ``torch._dynamo.explain`` it makes torch forget what it compiled.
    *costs*: what decides whether one is worth it.
    """
    explanation = Explanation()
    reset()
    compiled = torch.compile(model, backend=_eager(Pass(costs, explanation.graphs.append)))
    compiled(*args, **kwargs)
    reset()
    return explanation
