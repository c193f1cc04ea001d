"""Ways to change the arguments of a call, most of them for the worse."""

import numpy as np
import scipy.sparse as sps

import spcomp


class Evil:
    """An argument whose attributes do as they like."""

    format = "csr"
    shape = (30, 20)
    __array__ = None

    def __getattr__(self, name):
        raise RuntimeError(name)


class Mine(np.ndarray):
    pass


class OwnCsr(sps.csr_array):
    pass


def unaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    raw[...] = array
    return raw


def read_only(array):
    made = array.copy()
    made.flags.writeable = False
    return made


def poked(array, rng, low=-2, high=40):
    made = array.copy()
    if made.size:
        made.reshape(-1)[rng.integers(made.size)] = rng.integers(low, high)
    return made


ARRAYS = [
    lambda a, rng: a.astype("float64") if a.dtype == "float32" else a.astype("int64"),
    lambda a, rng: a.astype(a.dtype.newbyteorder()),
    lambda a, rng: np.asfortranarray(a),
    lambda a, rng: a[::-1],
    lambda a, rng: a[:-1],
    lambda a, rng: a[:0],
    lambda a, rng: np.repeat(a, 2, axis=-1)[..., ::2],
    lambda a, rng: a.view(Mine),
    lambda a, rng: np.ma.masked_array(a),
    lambda a, rng: unaligned(a),
    lambda a, rng: read_only(a),
    lambda a, rng: a.reshape(-1),
    lambda a, rng: a[None],
    lambda a, rng: np.array(1.0, a.dtype),
    lambda a, rng: a.tolist(),
    lambda a, rng: None,
    lambda a, rng: Evil(),
    lambda a, rng: a.astype(np.dtype(a.dtype, metadata={"x": 1})),
    lambda a, rng: a.copy(),
]
BAD_ARRAYS = [  # index arrays that only a check keeps from being used
    *ARRAYS,
    lambda a, rng: poked(a, rng),
    lambda a, rng: poked(a, rng, -(2**31), 2**31),
]


def with_part(matrix, name, value):
    made = matrix.copy()
    setattr(made, name, value)
    return made


SPARSE = [
    lambda m, rng: m.copy(),
    lambda m, rng: m.tocoo(),
    lambda m, rng: m.tocsc(),
    lambda m, rng: (sps.csr_matrix if m.format == "csr" else sps.bsr_matrix)(m),
    lambda m, rng: OwnCsr(m),
    lambda m, rng: m.toarray(),
    lambda m, rng: with_part(m, "data", m.data.astype("float16")),
    lambda m, rng: m[:-1] if m.format == "csr" else m,
    lambda m, rng: spcomp.Tensor.from_scipy(m),
    lambda m, rng: Evil(),
    lambda m, rng: with_part(m, "_shape", (m.shape[0], m.shape[1] + 1)),
    lambda m, rng: with_part(m, "_shape", (float(m.shape[0]), m.shape[1])),
    lambda m, rng: with_part(m, "indices", m.indices[::-1].copy()),
    lambda m, rng: with_part(m, "indptr", np.append(m.indptr, m.indptr[-1])),
    lambda m, rng: with_part(m, "indptr", m.indptr + np.int32(1)),
    lambda m, rng: with_part(m, "indptr", m.indptr.astype("int64")),
    lambda m, rng: with_part(m, "data", m.data[:-1]),
    lambda m, rng: with_part(m, "data", np.append(m.data, m.data[:3], axis=0)),
    lambda m, rng: with_part(m, "data", m.data.view(Mine)),
]
BAD_SPARSE = [
    *SPARSE,
    lambda m, rng: with_part(m, "indices", poked(m.indices, rng)),
    lambda m, rng: with_part(m, "indices", poked(m.indices, rng)),
    lambda m, rng: with_part(m, "indptr", poked(m.indptr, rng, -3, m.nnz + 3)),
]
TENSORS = [
    lambda t, rng: t.with_values(t.values * 2),
    lambda t, rng: t.with_values(t.values.astype("float64")),
    lambda t, rng: t.with_values(read_only(t.values)),
    lambda t, rng: t.with_values(t.values[None]),
    lambda t, rng: t.with_values(t.values[::-1]),
    lambda t, rng: spcomp.Tensor(t.shape, t.levels, t.values),
    lambda t, rng: spcomp.Tensor((*t.shape[:-1], t.shape[-1] + 1), t.levels, t.values),
    lambda t, rng: t.to_dense(),
    lambda t, rng: Evil(),
]
NUMBERS = [1, 0, -1, 20, True, None, 2.5, -0.0, float("nan"), float("inf"), 1e300, 2**70, "x",
           np.float32(2), np.int64(20), np.array(20), 3.4e38, 3.5e38]  # fmt: skip


def mutate(args, rng, arrays, sparse):
    """Change one or two of *args*, in place."""
    for name in rng.permutation(list(args))[: rng.integers(1, 3)]:
        arg = args.get(name)
        if isinstance(arg, spcomp.Tensor):
            args[name] = TENSORS[rng.integers(len(TENSORS))](arg, rng)
        elif type(arg) is np.ndarray:
            args[name] = arrays[rng.integers(len(arrays))](arg, rng)
        elif (sps.issparse(arg) and type(arg) is sps.csr_array) or type(arg) is sps.bsr_array:
            args[name] = sparse[rng.integers(len(sparse))](arg, rng)
        elif isinstance(arg, int | float):
            args[name] = NUMBERS[rng.integers(len(NUMBERS))]
    dice = rng.random()
    if dice < 0.03:
        args["unknown"] = 1
    elif dice < 0.06:
        args.pop(next(iter(args)))
    elif dice < 0.1 and isinstance(args.get("C"), np.ndarray) and args["C"].size == 240:
        args["B"] = args["C"].reshape(-1)[:160].reshape(20, 8)  # overlaps what is written
    elif dice < 0.14 and "B" in args:
        args["A"], args["B"] = args["B"], args["B"]
