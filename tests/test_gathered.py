"""What is remembered of statements: lists of what they hold, and putting one in another's place."""

from spcomp.dtypes import int64
from spcomp.ir.expr import Var, const
from spcomp.ir.stmt import Evaluate, For, Seq
from spcomp.ir.visitor import collector, statements
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import _replace


def loop(name, body):
    return For(Var(name, int64), const(0), const(2), body)


def nests(count):
    made = (loop(f"i{k}", loop(f"j{k}", Evaluate(const(k)))) for k in range(count))
    return loop("c", Seq(tuple(made)))


def test_loops_are_listed_from_outer_to_inner_in_order():
    names = [x.var.name for x in loops_of(nests(2))]
    assert names == ["c", "i0", "j0", "i1", "j1"]


def test_a_statement_that_two_programs_share_is_looked_at_once():
    seen = []

    @collector
    def kinds(node):
        seen.append(node)
        return (type(node).__name__,)

    program = nests(30)
    first = kinds(program)
    assert first == tuple(type(node).__name__ for node in statements(program))
    looked_at = len(seen)
    inner = program.body.body[7].body
    other = _replace(program, inner, inner.replace(kind="parallel"))
    assert kinds(other) == first
    assert len(seen) - looked_at < looked_at / 2


def test_what_is_put_in_the_place_of_a_statement_leaves_all_others():
    program = nests(3)
    inner = program.body.body[1].body
    other = _replace(program, inner, Evaluate(const(9)))
    assert [x.var.name for x in loops_of(other)] == ["c", "i0", "j0", "i1", "i2", "j2"]
    assert other.body.body[0] is program.body.body[0]
    assert other.body.body[2] is program.body.body[2]
    assert _replace(program, Evaluate(const(1)), Evaluate(const(2))) is program
