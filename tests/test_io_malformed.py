"""Files that break their format: each is refused with its name, the line and the reason."""

import gzip
import io
import os
import re
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, FileError
from spcomp.io import archive, frostt, grammar, matrix_market, source

BANNER = "%%MatrixMarket matrix "
REAL = BANNER + "coordinate real general\n"
ARRAY = BANNER + "array real general\n"
SYMMETRIC = BANNER + "coordinate real symmetric\n"
SKEW = BANNER + "coordinate real skew-symmetric\n"
INTEGER = BANNER + "coordinate integer general\n"
PATTERN = BANNER + "coordinate pattern general\n"


@pytest.fixture(params=["careful", "fast"])
def way(request, monkeypatch):
    if request.param == "fast":
        for module in (matrix_market, frostt):
            monkeypatch.setattr(module, "WHOLE", 0)


def refused(path, content, **options):
    """The message, without the folder, of the refusal of a file with *content*."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError) as caught:
        spcomp.read(path, **options)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(f"{path.parent}/")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [("", 0, "it is empty"),
     ("\n" + REAL, 1, "the first line is no Matrix Market banner"),
     ("1 1 1\n", 1, "the first line is no Matrix Market banner"),
     ("%MatrixMarket matrix coordinate real general\n1 1 0\n", 1, "no Matrix Market banner"),
     ("%%matrixmarket matrix coordinate real general\n1 1 0\n", 1, "no Matrix Market banner"),
     ("\0\1\2\xff" * 99, 1, "no Matrix Market banner"),
     (BANNER + "coordinate real\n1 1 0\n", 1, "the banner has 4 words, expected 5"),
     (BANNER + "coordinate real general x\n1 1 0\n", 1, "the banner has 6 words"),
     ("%%MatrixMarket vector coordinate real general\n", 1, "the object 'vector' is unknown"),
     (BANNER + "sparse real general\n", 1, "the format 'sparse' is unknown"),
     (BANNER + "coordinate double general\n", 1, "the field 'double' is unknown"),
     (BANNER + "coordinate complex general\n1 1 1\n1 1 1 1\n", 1, "complex matrices are not"),
     (BANNER + "coordinate complex hermitian\n", 1, "complex matrices are not supported"),
     (BANNER + "coordinate real antisymmetric\n", 1, "the symmetry 'antisymmetric' is unknown"),
     (BANNER + "coordinate real hermitian\n", 1, "a matrix that is real cannot be hermitian"),
     (BANNER + "coordinate pattern hermitian\n", 1, "that is pattern cannot be hermitian"),
     (BANNER + "coordinate integer hermitian\n", 1, "that is integer cannot be hermitian"),
     (BANNER + "coordinate pattern skew-symmetric\n", 1, "pattern cannot be skew-symmetric"),
     (BANNER + "coordinate unsigned-integer skew-symmetric\n", 1, "cannot be skew-symmetric"),
     (BANNER + "array pattern general\n2 2\n", 1, "an array cannot be pattern"),
     (REAL, 1, "the file ends before the line of sizes"),
     (REAL + "% c\n\n", 3, "the file ends before the line of sizes"),
     (REAL + "2 2\n1 1 1\n", 2, "got 2 sizes, expected 3: rows, columns, entries"),
     (REAL + "%\n2 2 1 1\n1 1 1\n", 3, "got 4 sizes"),
     (REAL + "-2 2 1\n1 1 1\n", 2, "the number of rows is '-2', expected 0 or more"),
     (REAL + "2 2 -1\n", 2, "the number of entries is '-1'"),
     (REAL + "2 +2 0\n", 2, "the number of columns is '+2'"),
     (REAL + "2 2.0 1\n1 1 1\n", 2, "'2.0' is not an integer"),
     (REAL + "2 x 1\n1 1 1\n", 2, "'x' is not an integer"),
     (REAL + "2 9223372036854775808 1\n1 1 1\n", 2, "'9223372036854775808' overflows int64"),
     (REAL + "2 2 1\n0 1 1\n", 3, "row 0 is out of range, expected 1..2"),
     (REAL + "2 2 1\n1 0 1\n", 3, "column 0 is out of range"),
     (REAL + "2 3 2\n1 1 1\n3 1 1\n", 4, "row 3 is out of range, expected 1..2"),
     (REAL + "2 3 2\n1 1 1\n\n2 4 1\n", 5, "column 4 is out of range, expected 1..3"),
     (REAL + "0 0 1\n1 1 1\n", 3, "row 1 is out of range, expected none"),
     (REAL + "2 2 1\n-1 1 1\n", 3, "row -1 is out of range"),
     (REAL + "2 2 1\n1.0 1 1\n", 3, "'1.0' is not an integer"),
     (REAL + "2 2 1\n4294967297 1 1\n", 3, "row 4294967297 is out of range"),
     (REAL + "2 2 1\n18446744073709551617 1 1\n", 3, "overflows int64"),
     (REAL + "2 2 1\n" + "9" * 5000 + " 1 1\n", 3, "9...' is not an integer"),
     (REAL + "2 2 2\n1 1 1\n", 3, "the file ends after 1 of 2 entries"),
     (REAL + "2 2 9999999999999\n1 1 1\n", 3, "ends after 1 of 9999999999999 entries"),
     (REAL + "2 2 1\n", 2, "the file ends after 0 of 1 entries"),
     (REAL + "2 2 1\n1 1 1\n2 2 1\n", 4, "there are more entries than the 1 declared"),
     (REAL + "2 2 0\n1 1 1\n", 3, "there are more entries than the 0 declared"),
     (REAL + "2 2 2\n1 1 1\n2 2", 4, "got 2 words, expected 3: row, column, value"),
     (REAL + "2 2 1\n1 1 1 1\n", 3, "got 4 words, expected 3"),
     (PATTERN + "2 2 1\n1 1 1\n", 3, "got 3 words, expected 2: row, column"),
     (REAL + "2 2 1\n1 1\n1\n", 3, "got 2 words"),
     (REAL + "2 2 1\n1 1 abc\n", 3, "'abc' is not a number"),
     (REAL + "2 2 1\n1 1 1.5.2\n", 3, "'1.5.2' is not a number"),
     (REAL + "2 2 1\n1 1 1.5x\n", 3, "'1.5x' is not a number"),
     (REAL + "2 2 1\n1 1 1d5\n", 3, "'1d5' is not a number"),
     (REAL + "2 2 1\n1 1 0x10\n", 3, "'0x10' is not a number"),
     (REAL + "2 2 1\n1 1 1_0\n", 3, "'1_0' is not a number"),
     (REAL + "2 2 1\n1 1 1e\n", 3, "'1e' is not a number"),
     (REAL + "2 2 1\n1 1 .\n", 3, "'.' is not a number"),
     (REAL + "2 2 1\n1 1 1,5\n", 3, "'1,5' is not a number"),
     (REAL + "2 2 1\n1 1 \u0661\n", 3, "is not a number"),
     (REAL + "2 2 1\n1 1 1e400\n", 3, "'1e400' overflows float64"),
     (REAL + "2 2 1\n1 1 1\0\n", 3, r"'1\x00' is not a number"),
     (REAL + "2 2 1\n1 1\v1\n", 3, "got 2 words"),
     (REAL + "2 2 2\n1 1 1\r2 2 1\n", 3, "got 5 words"),
     (REAL + "2 2 1\n% c\n1 1 1\n", 3, "a comment among the entries"),
     (REAL + "2 2 1\n1 1 1\n% c\n", 4, "a comment among the entries"),
     (INTEGER + "2 2 1\n1 1 1.5\n", 3, "'1.5' is not an integer"),
     (INTEGER + "2 2 1\n1 1 1e3\n", 3, "'1e3' is not an integer"),
     (INTEGER + "2 2 1\n1 1 nan\n", 3, "'nan' is not an integer"),
     (INTEGER + "2 2 1\n1 1 9223372036854775808\n", 3, "overflows int64"),
     (INTEGER.replace("integer", "unsigned-integer") + "1 1 1\n1 1 -1\n", 3, "overflows uint64"),
     (INTEGER.replace("general", "skew-symmetric") + "2 2 1\n2 1 -9223372036854775808\n", 3,
      "the negative of -9223372036854775808 overflows int64"),
     (SYMMETRIC + "3 4 0\n", 2, "a matrix of shape 3 x 4 cannot be symmetric"),
     (SKEW + "3 4 0\n", 2, "a matrix of shape 3 x 4 cannot be skew-symmetric"),
     (BANNER + "array real symmetric\n3 4\n", 2, "a matrix of shape 3 x 4 cannot be symmetric"),
     (SYMMETRIC + "2 2 1\n1 2 1\n", 3, "entry (1, 2) is above the diagonal of a symmetric"),
     (SYMMETRIC + "2 2 2\n2 1 1\n1 2 1\n", 4, "entry (1, 2) is above the diagonal"),
     (SKEW + "2 2 1\n1 2 1\n", 3, "entry (1, 2) is above the diagonal of a skew-symmetric"),
     (SKEW + "2 2 1\n2 2 1\n", 3, "entry (2, 2) is on the diagonal of a skew-symmetric"),
     (SKEW + "2 2 1\n2 2 0\n", 3, "entry (2, 2) is on the diagonal of a skew-symmetric"),
     (REAL + "2 2 3\n1 2 1\n2 2 1\n1 2 1\n", 5, "the entry of line 3 is repeated"),
     (REAL + "2 2 4\n2 2 1\n1 2 0\n1 2 0\n2 2 1\n", 5, "the entry of line 4 is repeated"),
     (SYMMETRIC + "2 2 2\n2 1 1\n2 1 1\n", 4, "the entry of line 3 is repeated"),
     (ARRAY + "2 2 4\n1\n2\n3\n4\n", 2, "got 3 sizes, expected 2: rows, columns"),
     (ARRAY + "2 2\n1 2\n3 4\n", 3, "got 2 words, expected 1: one value"),
     (ARRAY + "0 9223372036854775807\n", 2, "no array has the shape (0, 9223372036854775807)"),
     (ARRAY + "9223372036854775807 0\n", 2, "no array has the shape (9223372036854775807, 0)"),
     (ARRAY + "2 2\n1\n2\n3\n", 5, "the file ends after 3 of 4 values"),
     (ARRAY + "2 1\n1\n2\n3\n", 5, "there are more values than the 2 declared"),
     (ARRAY + "2 1\n1\nx\n", 4, "'x' is not a number"),
     (ARRAY + "2 1\n1\n1e999\n", 4, "'1e999' overflows float64"),
     (ARRAY + "999999999 9999999999\n1\n", 3, "the file ends after 1 of 9999999989000000001"),
     (REAL + "9999999999999 1 1\n1 1 1\n", 2, "GiB before any entry"),
     (REAL + "1 1 1\n1 1 " + "1" * 70000 + "\n", 3, "the line is longer than 65536 bytes")],
)  # fmt: skip
def test_a_malformed_matrix_is_refused_at_its_line(tmp_path, way, text, line, reason):
    message = refused(tmp_path / "a.mtx", text)
    assert message.startswith(f"a.mtx:{line}: " if line else "a.mtx: ")
    assert reason in message.split("\n")[0]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [("", 0, "the file ends without an entry"), ("# c\n\n", 2, "the file ends without an entry"),
     ("7\n", 1, "got 1 words, expected 1 to 32 coordinates and a value"),
     ("1 " * 40 + "\n", 1, "got 40 words"),
     ("1 1 1 1\n1 1 1\n", 2, "got 3 words, expected 3 coordinates and a value"),
     ("1 1 1 1\n1 1 1 1 1\n", 2, "got 5 words"),
     ("1 1 1 1\n# c\n0 1 1 1\n", 3, "coordinate 1 0 is out of range, expected at least 1"),
     ("1 -1 1 1\n", 1, "coordinate 2 -1 is out of range"),
     ("1 1 1.0 1\n", 1, "'1.0' is not an integer"),
     ("1 1 1e3 1\n", 1, "'1e3' is not an integer"),
     ("1 1 9223372036854775808 1\n", 1, "overflows int64"),
     ("1 1 1 1\n1 1 1 x\n", 2, "'x' is not a number"),
     ("1 1 1 1\n1 1 1 1e309\n", 2, "'1e309' overflows float64"),
     ("1 1 1 1\n2 1 1 1\n1 1 1 0\n", 3, "the entry of line 1 is repeated"),
     ("1 1 1\n2 1 1\n1 1 1\n", 3, "the entry of line 1 is repeated"),
     ("999999999999999 1 1 1\n", 0, "GiB before any entry"),
     ("\0\xff\xfe" * 50, 1, "got 1 words"), ("1 1 1 1\n% c\n", 2, "got 2 words")],
)  # fmt: skip
def test_a_malformed_tensor_is_refused_at_its_line(tmp_path, way, text, line, reason):
    message = refused(tmp_path / "a.tns", text)
    assert message.startswith(f"a.tns:{line}: " if line else "a.tns: ")
    assert reason in message.split("\n")[0]


def test_a_sum_of_integers_that_overflows_is_refused(tmp_path, way):
    text = INTEGER + f"1 1 2\n1 1 {2**62}\n1 1 {2**62}\n"
    message = refused(tmp_path / "a.mtx", text, duplicates="sum")
    assert "the sum of repeated entries overflows int64" in message


def test_a_path_that_is_no_file_is_refused(tmp_path):
    folder = tmp_path / "d.mtx"
    folder.mkdir()
    for path, reason in ((folder, "it is a directory"), (tmp_path / "no.mtx", "no such file")):
        with pytest.raises(FileError, match=re.escape(str(path)) + f": .*{reason}"):
            spcomp.read(path)
    os.mkfifo(tmp_path / "f.mtx")
    with pytest.raises(FileError, match="not a regular file"):
        spcomp.read(tmp_path / "f.mtx")
    for wrong in (3, None, b"a.mtx", "a\0.mtx"):
        with pytest.raises(ArgumentError, match="argument path"):
            spcomp.read(wrong)
    with pytest.raises(ArgumentError, match="no known kind"):
        refused(tmp_path / "a.txt", "1")


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.mtx"
    path.write_text(REAL + "1 1 0\n")

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source, "open", forbidden, raising=False)
    with pytest.raises(FileError, match=r"a\.mtx: there is no permission to use it"):
        spcomp.read(path)


def test_a_damaged_gzip_file_is_refused(tmp_path, way):
    whole = gzip.compress((REAL + "2 2 1\n1 1 1\n").encode())
    assert "not a gzipped file" in refused(tmp_path / "a.mtx.gz", REAL)
    for cut in (3, 12, len(whole) // 2, len(whole) - 1):
        assert "damaged" in refused(tmp_path / "a.mtx.gz", whole[:cut])
    wrong = bytearray(whole)
    wrong[-6] ^= 1
    assert "damaged" in refused(tmp_path / "a.mtx.gz", bytes(wrong))


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [("mangled1", 1, "the object 'mangled' is unknown"), ("mangled5", 1, "cannot be hermitian"),
     ("mangled9", 4, "shape 3 x 4 cannot be symmetric")],
)  # fmt: skip
def test_the_shared_malformed_samples_are_refused(shared_data, name, line, reason):
    with pytest.raises(FileError, match=rf"{name}\.mtx:{line}: .*{reason}"):
        spcomp.read(shared_data / "malformed" / f"{name}.mtx")


def _archive(**changes):
    """An archive of a CSR matrix with *changes*; None leaves an array out."""
    arrays = {"format": np.array(b"csr"), "shape": np.array([2, 3]), "data": np.array([1.0, 2.0]),
              "indices": np.array([0, 2]), "indptr": np.array([0, 1, 2])}  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return file.getvalue()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"format": np.array(b"xyz")}, "the format 'xyz' is unknown"),
     ({"format": np.arange(3)}, "the format '' is unknown"),
     ({"data": None}, "it has no array data"), ({"shape": None}, "it has no array shape"),
     ({"indices": np.array([0, 3])}, "level 1 indices: got 3"),
     ({"indices": np.array([-1, 2])}, "level 1 indices: got -1"),
     ({"indices": np.array([0.0, 2.0])}, "expected integers"),
     ({"indptr": np.array([0, 2])}, "level 1 indptr: got 2 elements, expected 3"),
     ({"indptr": np.array([0, 3, 2])}, "level 1 indptr: decreases from 3 to 2"),
     ({"indptr": np.array([0, 1, 5])}, "level 1 indptr: ends at 5"),
     ({"indptr": np.array([1, 1, 2])}, "level 1 indptr: starts at 1"),
     ({"indptr": np.array([[0, 1, 2]])}, "1 dimensions"),
     ({"data": np.array([1.0])}, "values: got 1 elements, expected 2"),
     ({"data": np.array([[1.0, 2.0]])}, "1 dimensions"),
     ({"data": np.array([1j, 2])}, "dtype complex128"), ({"data": np.array(["a", "b"])}, "dtype"),
     ({"data": np.array([1.0, None], object)}, "object arrays"),
     ({"shape": np.array([2, -3])}, "extents of 0 or more"),
     ({"shape": np.array([2.0, 3.0])}, "not a list of integers"),
     ({"shape": np.array([2, 3, 1])}, "3 extents, expected 2"),
     ({"shape": np.array([2**62, 3])}, "indptr: got 3 elements"),
     ({"indices": np.array([0, 0]), "indptr": np.array([0, 2, 2])}, "stored value 1 has the coord"),
     ({"format": None, "shape": np.array([2, 2])}, "may be csr or csc"),
     ({"format": np.array(b"bsr")}, "expected 3 dimensions"),
     ({"format": np.array(b"bsr"), "data": np.ones((2, 2, 2))}, "blocks of 2 x 2"),
     ({"format": np.array(b"coo")}, "it has no array row"),
     ({"format": np.array(b"coo"), "row": np.array([0, 2]), "col": np.array([0, 1])}, "row: got 2"),
     ({"format": np.array(b"coo"), "row": np.array([0]), "col": np.array([0, 1])}, "1 elements"),
     ({"format": np.array(b"dia"), "offsets": np.array([1])}, "2 dimensions"),
     ({"format": np.array(b"dia"), "data": np.ones((1, 2)), "offsets": np.array([99])}, "got 99"),
     ({"spcomp_tensor": np.array(2), "kinds": np.array(["dense"]), "values": np.ones(2)},
      "version"),
     ({"spcomp_tensor": np.array(1)}, "it has no array kinds"),
     ({"spcomp_tensor": np.array(1), "kinds": np.array(["dense", "odd"]), "values": np.ones(2)},
      "level 1 of kind 'odd'"),
     ({"spcomp_tensor": np.array(1), "kinds": np.array(["dense", "ragged"]), "values": np.ones(2)},
      "level 1 of kind 'ragged' is unknown or incomplete"),
     ({"spcomp_tensor": np.array(1), "kinds": np.array(["dense", "dense"]), "values": np.ones(2)},
      "got 2 elements, expected 6")],
)  # fmt: skip
def test_a_malformed_archive_is_refused_with_its_reason(tmp_path, changes, reason):
    message = refused(tmp_path / "a.npz", _archive(**changes)).lower()
    assert message.startswith("a.npz: ")
    assert reason.lower() in message


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    single = io.BytesIO()
    np.save(single, np.ones(3))
    for content in (b"", b"\x80\x04N.", single.getvalue(), b"PK\3\4 nonsense"):
        assert "not an archive" in refused(path, content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", b"\x93NUMPY\1\0\xff\xff{'shape'")
    assert "damaged" in refused(path, path.read_bytes())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", b"nothing")
    assert "it has no array" in refused(path, path.read_bytes())


def test_an_archive_with_any_byte_changed_is_refused_or_read_right(tmp_path):
    want = sps.csr_array(np.array([[0, 1.5, 0], [2, 0, 3]]))
    sps.save_npz(tmp_path / "w.npz", want)
    whole, rng = (tmp_path / "w.npz").read_bytes(), np.random.default_rng(0)
    path, read = tmp_path / "a.npz", 0
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(changed[: rng.integers(len(whole)) if rng.random() < 0.1 else None])
        try:
            got = spcomp.read(path)
        except FileError:
            continue
        read += 1
        assert np.array_equal(got.toarray(), want.toarray())
    assert read  # some bytes, as those of dates, say nothing


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "memory", lambda: 1 << 20)
    message = refused(tmp_path / "a.npz", _archive(data=np.zeros(1 << 18)))
    assert "more than the memory" in message


@pytest.mark.parametrize(
    ("name", "before", "filler", "line"),
    [
        ("a.mtx.gz", REAL, "% is it over?\n", 2),
        ("a.mtx.gz", REAL, "\n", 2),
        ("a.mtx.gz", REAL + "2 2 2\n1 1 1\n", "\n", 4),
        ("a.mtx.gz", REAL + "2 2 2\n1 1 1\n", "   \t\n", 4),
        ("a.tns.gz", "", "# is it over?\n", 1),
        ("a.tns.gz", "1 1 1 1\n", "\n", 2),
    ],
)
def test_comments_and_blanks_without_an_end_are_refused(
    tmp_path, monkeypatch, way, name, before, filler, line
):
    monkeypatch.setattr(source, "PROSE", 1 << 17)
    text = before + filler * (1 << 18)
    at = line + source.PROSE // len(filler)
    message = refused(tmp_path / name, gzip.compress(text.encode(), 1))
    assert f"{name}:{at}: more than 128 KiB of comments and blank lines" in message


def test_entries_behind_those_declared_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_market, "WHOLE", 0)
    text = REAL + "2 2 1\n" + "1 1 1\n" * 10_000_000
    path, looked_at = tmp_path / "a.mtx.gz", []
    good = grammar._accepts
    monkeypatch.setattr(grammar, "_accepts", lambda *args: looked_at.append(args) or good(*args))
    message = refused(path, gzip.compress(text.encode(), 1))
    assert ":4: there are more entries than the 1 declared" in message
    assert sum(len(lines) for lines, _ in looked_at) <= source.PROSE + 2 * source.BLOCK


def test_a_tensor_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, way, monkeypatch):
    monkeypatch.setattr(source, "memory", lambda: 1 << 20)
    message = refused(tmp_path / "a.tns.gz", gzip.compress(b"1 1 1\n" * 100_000))
    assert "the entries up to here take 0.0 GiB, more than the memory" in message


@pytest.mark.parametrize("missing", ["function", "name"])
def test_a_system_that_does_not_say_its_memory_has_no_limit(tmp_path, monkeypatch, missing):
    if missing == "function":
        monkeypatch.delattr(os, "sysconf")
    else:
        monkeypatch.setattr(os, "sysconf", _unknown_name)
    path = tmp_path / "a.mtx"
    path.write_text(REAL + "2 2 1\n1 1 1\n")
    assert spcomp.read(path).nnz == 1
    assert source._installed() == sys.maxsize


def _unknown_name(name):
    raise ValueError(f"unrecognized configuration name {name}")
