"""LLVM IR of small GPU kernels for the emulator's tests."""

import re

G = "ptr addrspace(1)"
S = "ptr addrspace(3)"
SREG = "call i32 @llvm.nvvm.read.ptx.sreg"
BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


def module(body: str, params: str, *, variables: str = "", name: str = "k", more: str = "") -> str:
    """Return a module with the kernel *name*, declarations included, a line note for each line.

    ``tid``, ``ntid`` and ``bid`` are defined; the n-th line of *body* has the note "k.py:n".
    """
    begin = (
        f"  %tid = {SREG}.tid.x()\n  %ntid = {SREG}.ntid.x()\n  %bid = {SREG}.ctaid.x()\n"
        "  %base = mul i32 %bid, %ntid\n  %gid = add i32 %base, %tid\n"
        "  %t = zext i32 %tid to i64\n  %g = zext i32 %gid to i64\n"
    )
    lines, notes = [], ["!0 = !{}"]
    for number, line in enumerate(body.strip("\n").splitlines(), 1):
        noted = line.strip() and not line.rstrip().endswith(":") and " phi " not in line
        lines.append(f"{line}, !at !{number + 10}" if noted else line)
        notes.append(f'!{number + 10} = !{{!"k.py:{number}"}}')
    text = f"{variables}\ndefine ptx_kernel void @{name}({params}) #0 {{\nentry:\n{begin}"
    text += "\n".join(lines) + "\n}\n" + more + '\nattributes #0 = { "nvvm.maxntid"="1024" }\n'
    return declared(text) + "\n".join(notes) + "\n"


def declared(text: str) -> str:
    """Return *text* with a declaration of each intrinsic that it calls."""
    found = {}
    for kind, name, args in re.findall(r"call (.+?) (@llvm\.[\w.]+)\((.*)\)", text):
        types = [re.match(r"(<.*?>|ptr addrspace\(\d\)|\S+) ", arg + " ") for arg in _split(args)]
        found[name] = f"declare {kind} {name}({', '.join(t[1] for t in types if t)})"
    return text + "\n".join(found.values()) + "\n"


def _split(args: str) -> list[str]:
    return [arg for arg in re.split(r", (?![^<]*>)", args) if arg]


def at(name: str, pointer: str, index: str, kind: str = "i32", space: int = 1) -> str:
    """Return the line that points *name* to an element."""
    return f"  %{name} = getelementptr {kind}, ptr addrspace({space}) {pointer}, i64 {index}\n"


DYNAMIC = "@shared = external addrspace(3) global [0 x i8], align 16"
ADD = module(
    """
  %in = icmp slt i32 %gid, %n
  br i1 %in, label %go, label %done
go:
  %pa = getelementptr float, ptr addrspace(1) %a, i64 %g
  %va = load float, ptr addrspace(1) %pa, align 4
  %pb = getelementptr float, ptr addrspace(1) %b, i64 %g
  %vb = load float, ptr addrspace(1) %pb, align 4
  %s = fadd float %va, %vb
  %pc = getelementptr float, ptr addrspace(1) %c, i64 %g
  store float %s, ptr addrspace(1) %pc, align 4
  br label %done
done:
  ret void
""",
    f"{G} readonly align 4 %a, {G} readonly %b, {G} %c, i32 %n",
)


def block_sum(barrier: str = BARRIER) -> str:
    """Return the sum of each block's elements through shared memory, a tree of halves."""
    return module(
        f"""
  %px = getelementptr i32, ptr addrspace(1) %x, i64 %g
  %v = load i32, ptr addrspace(1) %px, align 4
  %mine = getelementptr i32, ptr addrspace(3) @shared, i64 %t
  store i32 %v, ptr addrspace(3) %mine, align 4
  %half = lshr i32 %ntid, 1
  br label %head
head:
  %w = phi i32 [ %half, %entry ], [ %next, %step ]
  {barrier}
  %more = icmp sgt i32 %w, 0
  br i1 %more, label %test, label %end
test:
  %in = icmp slt i32 %tid, %w
  br i1 %in, label %add, label %step
add:
  %j = add i32 %tid, %w
  %jl = zext i32 %j to i64
  %other = getelementptr i32, ptr addrspace(3) @shared, i64 %jl
  %o = load i32, ptr addrspace(3) %other, align 4
  %m = load i32, ptr addrspace(3) %mine, align 4
  %s = add i32 %o, %m
  store i32 %s, ptr addrspace(3) %mine, align 4
  br label %step
step:
  %next = lshr i32 %w, 1
  br label %head
end:
  %first = icmp eq i32 %tid, 0
  br i1 %first, label %write, label %done
write:
  %r = load i32, ptr addrspace(3) @shared, align 4
  %b64 = zext i32 %bid to i64
  %po = getelementptr i32, ptr addrspace(1) %out, i64 %b64
  store i32 %r, ptr addrspace(1) %po, align 4
  br label %done
done:
  ret void
""",
        f"{G} noalias readonly align 16 %x, {G} noalias align 16 %out",
        variables=DYNAMIC,
    )


def per_thread(call: str, kind: str = "i32", operands: str = "%v") -> str:
    """Return a kernel ``out[g] = call(x[g])``; *call* uses %v, and %m = mask[g], %k = by[g]."""
    loads = "".join(
        at(f"p{name}", f"%{name}", "%g", "i32")
        + f"  %{value} = load {'i32'}, ptr addrspace(1) %p{name}, align 4\n"
        for name, value in (("x", "v"), ("mask", "m"), ("by", "k"))
    )
    return module(
        f"""{loads}  %bit = trunc i32 %v to i1
  %r = {call}
  %wide = {"zext i1 %r to i32" if kind == "i1" else "add i32 %r, 0"}
  %po = getelementptr i32, ptr addrspace(1) %out, i64 %g
  store i32 %wide, ptr addrspace(1) %po, align 4
  ret void""",
        f"{G} readonly %x, {G} readonly %mask, {G} readonly %by, {G} %out",
    )


SPMM = module(
    f"""
  %lane = and i32 %tid, 31
  %rowi = lshr i32 %gid, 5
  %row = zext i32 %rowi to i64
  %in = icmp slt i32 %rowi, %m
  br i1 %in, label %go, label %done
go:
{at("pb", "%indptr", "%row")}  %begin = load i32, ptr addrspace(1) %pb, align 4, !invariant.load !0
  %row1 = add i64 %row, 1
{at("pe", "%indptr", "%row1")}  %end = load i32, ptr addrspace(1) %pe, align 4, !invariant.load !0
  br label %chunk
chunk:
  %chunk0 = phi i32 [ %begin, %go ], [ %chunk1, %next ]
  %sum = phi float [ 0.0, %go ], [ %sum1, %next ]
  %more = icmp slt i32 %chunk0, %end
  br i1 %more, label %fetch, label %write
fetch:
  %mine = add i32 %chunk0, %lane
  %has = icmp slt i32 %mine, %end
  br i1 %has, label %read, label %ready
read:
  %ml = zext i32 %mine to i64
{at("pi", "%indices", "%ml")}  %ri = load i32, ptr addrspace(1) %pi, align 4
{at("pv", "%values", "%ml", "float")}  %rv = load float, ptr addrspace(1) %pv, align 4
  br label %ready
ready:
  %col = phi i32 [ 0, %fetch ], [ %ri, %read ]
  %val = phi float [ 0.0, %fetch ], [ %rv, %read ]
  br label %inner
inner:
  %k = phi i32 [ 0, %ready ], [ %k1, %inner ]
  %acc = phi float [ %sum, %ready ], [ %acc1, %inner ]
  %j = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 %col, i32 %k, i32 31)
  %v = call float @llvm.nvvm.shfl.sync.idx.f32(i32 -1, float %val, i32 %k, i32 31)
  %jr = mul i32 %j, 32
  %je = add i32 %jr, %lane
  %jl = zext i32 %je to i64
{at("px", "%x", "%jl", "float")}  %b = load float, ptr addrspace(1) %px, align 4
  %p = fmul contract float %v, %b
  %acc1 = fadd contract float %acc, %p
  %k1 = add i32 %k, 1
  %left = sub i32 %end, %chunk0
  %c1 = icmp slt i32 %k1, %left
  %c2 = icmp slt i32 %k1, 32
  %c = and i1 %c1, %c2
  br i1 %c, label %inner, label %next
next:
  %sum1 = phi float [ %acc1, %inner ]
  %chunk1 = add i32 %chunk0, 32
  br label %chunk
write:
{at("po", "%out", "%g", "float")}  store float %sum, ptr addrspace(1) %po, align 4
  br label %done
done:
  ret void""",
    f"{G} noalias readonly align 4 %indptr, {G} noalias readonly align 4 %indices,"
    f" {G} noalias readonly align 4 %values, {G} noalias readonly align 4 %x,"
    f" {G} noalias align 4 %out, i32 %m",
)
