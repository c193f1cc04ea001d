"""Valid files with a few bytes or words changed: refused, or what a simple reader reads."""

import random
import re

import numpy as np
import pytest

import spcomp
from spcomp.errors import FileError
from spcomp.io import frostt, matrix_market

WORD = rb"[^ \t]+"
INTEGER = rb"[+-]?[0-9]{1,40}"
REAL = rb"(?i)[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan)"
SYMMETRIES = {"real": 3, "integer": 3, "unsigned-integer": 2, "pattern": 2}
LIMITS = {"integer": (-(2**63), 2**63), "unsigned-integer": (0, 2**64)}
MATRICES = [
    b"%%MatrixMarket matrix coordinate real general\n%c\n3 4 3\n1 1 1.5\n3 4 -2e3\n2 2 .5\n",
    b"%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n1 1 12\n3 1 -5\n3 2 7\n",
    b"%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 1\n3 2 -1.25\n",
    b"%%MatrixMarket matrix coordinate pattern general\r\n12 10 3\r\n12 1\r\n1 10\r\n2 2\r\n",
    b"%%MatrixMarket matrix array real general\n2 3\n1\n2\n3\n4\n5e-1\n6\n",
    b"%%MatrixMarket matrix array integer symmetric\n2 2\n\n1\n2\n3\n",
    b"%%MatrixMarket matrix coordinate unsigned-integer general\n2 2 2\n1 1 1\n2 2 9",
]
TENSORS = [
    b"# c\n1 1 2 1.5\n2 3 1 -2\n2 1 1 3e2\n", b"1 2 3\n4 5 6\n3 1 9\n", b"3 1\n1 2\n5 .5\n",
    b"1 1 1 1 1.\r\n2 1 2 1 4.\r\n",
]  # fmt: skip
PIECES = [
    b"0", b"1", b"-1", b"9", b"9" * 20, b"1.5", b"1e5", b"nan", b"inf", b"+", b"-", b".", b"e",
    b" ", b"\t", b"\n", b"\n\n", b"\r\n", b"\r", b"%", b"#", b"\0", b"\xff", b"x", b"1 1 1\n",
    b"real", b"integer", b"pattern", b"symmetric", b"general", b"array",
]  # fmt: skip


class RefusedError(Exception):
    """What the simple reader raises."""


def must(holds):
    if not holds:
        raise RefusedError


def whole(word):
    must(re.fullmatch(INTEGER, word))
    return int(word)


def number(word, field):
    if field == "real":
        must(re.fullmatch(REAL, word))
        value = float(word)
        must(abs(value) != float("inf") or b"n" in word.lower())
        return value
    value, (low, high) = whole(word), LIMITS[field]
    must(low <= value < high)
    return value


def lines_of(data):
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = data.split(b"\n")
    return [
        re.findall(WORD, line.rstrip(b"\r\n")) for line in lines[: -1 if not lines[-1] else None]
    ]


def simple_matrix(data):
    """The dense array that the file describes, and where something is stored."""
    lines = lines_of(data)
    must(lines and len(lines[0]) == 5 and lines[0][0] == b"%%MatrixMarket")
    kind, layout, field, symmetry = (word.lower().decode("latin-1") for word in lines[0][1:])
    must(kind == "matrix" and layout in ("coordinate", "array") and field in SYMMETRIES)
    must(symmetry in ("general", "symmetric", "skew-symmetric")[: SYMMETRIES[field]])
    rest = [line for line in lines[1:] if line]
    while rest and rest[0][0].startswith(b"%"):
        del rest[0]
    must(rest and len(rest[0]) == (3 if layout == "coordinate" else 2))
    must(all(word.isdigit() for word in rest[0]))
    sizes, body = [whole(word) for word in rest[0]], rest[1:]
    must(max(sizes) < 2**63 and (symmetry == "general" or sizes[0] == sizes[1]))
    must(sizes[0] < 10**9 and (layout == "array" or len(body) == sizes[2]))
    return fill(layout, field, symmetry, sizes, body)


def fill(layout, field, symmetry, sizes, body):
    rows, columns = sizes[:2]
    lower = {"general": -columns, "symmetric": 0, "skew-symmetric": 1}[symmetry]
    places = [(i, j) for j in range(columns) for i in range(rows) if i - j >= lower] if (
        layout == "array" and rows * columns < 10**5) else []  # fmt: skip
    must(layout == "coordinate" or len(body) == len(places))
    result = {}
    for at, words in enumerate(body):
        must(len(words) == (layout == "coordinate") * 2 + (field != "pattern"))
        i, j = (whole(words[0]) - 1, whole(words[1]) - 1) if layout == "coordinate" else places[at]
        must(0 <= i < rows and 0 <= j < columns and i - j >= lower and (i, j) not in result)
        result[i, j] = 1.0 if field == "pattern" else number(words[-1], field)
        if symmetry == "skew-symmetric" and field == "integer":
            must(result[i, j] != -(2**63))
    sign = -1 if symmetry == "skew-symmetric" else 1
    if symmetry != "general":
        result |= {(j, i): value * sign for (i, j), value in result.items() if i != j}
    return (rows, columns), result


def simple_tensor(data):
    lines = [line for line in lines_of(data) if line and not line[0].startswith(b"#")]
    must(lines and 2 <= len(lines[0]) <= 33)
    result = {}
    for words in lines:
        must(len(words) == len(lines[0]))
        at = tuple(whole(word) - 1 for word in words[:-1])
        must(all(0 <= index < 2**63 - 1 for index in at) and at not in result)
        result[at] = number(words[-1], "real")
    shape = tuple(max(extent) + 1 for extent in zip(*result, strict=True))
    must(len(shape) == 1 or shape[0] < 10**9)
    return shape, result


def stored(value):
    """What a result describes, as the simple readers give it."""
    if isinstance(value, np.ndarray):
        return value.shape, {at: value[at].item() for at in np.ndindex(value.shape)}
    if isinstance(value, spcomp.Tensor):
        coords, values = value.coordinates(), value.values.reshape(-1)
    else:
        assert value.has_canonical_format
        coords, values = value.tocoo().coords, value.tocoo().data
    at = zip(*(coord.tolist() for coord in coords), strict=True)
    return tuple(value.shape), dict(zip(at, values.tolist(), strict=True))


def mutated(data, rng):
    """*data* with one to three places changed, mostly behind the first line."""
    begin = rng.choice([0, data.index(b"\n") + 1, data.index(b"\n") + 1])
    result = bytearray(data[begin:])
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(6):
            case 0:
                result[at : at + 1] = rng.choice(PIECES)
            case 1:
                result[at:at] = rng.choice(PIECES)
            case 2:
                del result[at : at + rng.randint(1, 4)]
            case 3:
                words = list(re.finditer(rb"[^ \t\r\n]+", bytes(result))) or [re.match(b"", b"")]
                result[slice(*rng.choice(words).span())] = rng.choice(PIECES)
            case 4:
                lines = bytes(result).split(b"\n")
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                result = bytearray(b"\n".join(lines))
            case _:
                del result[rng.choice([at, len(result)]) :]
    return data[:begin] + bytes(result)


def check(path, data, simple):
    """Whether the file is read; fails unless it is read right exactly if the simple reader can."""
    path.write_bytes(data)
    try:
        want = simple(data)
    except RefusedError:
        with pytest.raises(FileError) as caught:
            spcomp.read(path)
        assert re.match(re.escape(str(path)) + r"(:\d+)?: \S", str(caught.value)), data
        return False
    shape, result = stored(spcomp.read(path))
    assert shape == want[0], data
    assert repr(sorted(result.items())) == repr(sorted(want[1].items())), data
    return True


@pytest.mark.parametrize("threshold", [0, 1 << 16])
@pytest.mark.parametrize(
    ("name", "files", "simple"),
    [("f.mtx", MATRICES, simple_matrix), ("f.tns", TENSORS, simple_tensor)],
)
def test_a_changed_file_is_refused_or_read_as_by_the_simple_reader(
    tmp_path, monkeypatch, name, files, simple, threshold
):
    for module in (matrix_market, frostt):
        monkeypatch.setattr(module, "WHOLE", threshold)
    rng, read = random.Random(7), 0
    for data in files:
        assert check(tmp_path / name, data, simple)
    for _ in range(500):
        read += check(tmp_path / name, mutated(rng.choice(files), rng), simple)
    assert 50 < read < 450
