"""Pickles of data that earlier versions made are read; programs are kept as text instead."""

from __future__ import annotations

import ast
import base64
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import scipy.sparse as sps

from spcomp import Tensor

ROOT = Path(__file__).parents[1]

TENSOR = (  # of version 0.6.0
    "c-"
    "n1G&r2IY7@gfD8`)^^Sj0mQ9`;a{R)m%!9Z^u~Kn`mUOTmWhW^@;l&Hk7i0v=RIVpK{s<e(raZ7KHBLI|al#>0Gnn9"
    "gRGUfK`dHy<<az3<JTY)8J`sQY@{+!_saM!l#Js&A4*BRQgUcD0hJB7|a6NTY~WZLeAPTYA}UgjBCLYs{^LVWp*(Lu"
    "xm?h=om?sR2r8s#i^31BsxvEkspnM=JH=K@DV665f`nh+eBO*LxOZI!2J~8XA#^(oRjPtmO-"
    "K&XfhuUFn^4jX=>zW~yEd@}*K~`(D(v5yY&XBb$#<QaORxe@37nFe~7QEzEL|6Q^?0b+c_piG@#7VZ1COkWEdb^e&g"
    "aOX-~bYuKg#S|*|QUc{kAWas~3&jg2mHTbx=vj7A9_Miv@c>fZ<;U)OB!TZl)1Q!^_d;*{0_p${)@LB;TYg-"
    "x|;dwra*5OixQ*7~1kD&v9WVpqz1a%m^n}Z>SyCwb+z6f;>KHw+(#B}*JoWm8~gzx#+{A?fkm><K>d}dLB8=QQHAR="
    "{`p+5kclDJ#"
)
PARTS = (  # of version 0.6.0
    "c-oaz?Tg$*9M0}`ce}aX^+o$~*SquD-iNKo_9~)M#9V8!_5wk+DnU4xNiusAnoTk<sk`EVC){>dMby#{3Q|!K{nA1y"
    "B4YiJ`NMQ(lD*yA7Q{d%lbL6p-}C%te)CDurLh}z;)ZPe0Fp*KA|1eJD+Yv7{cY8r-"
    "`T8>fcbm_^&I^z@ya=~Xcl&d&@szqr9T3CtQSM7Uwub>bgZ4<!G+DbUDh<M9Ylbc>t+Eu+jYAnM%G$uxG4HH(Qmf=("
    "DPkL-"
    "7x9Iy++H82yAqcfcbzB(9>H4x=~0ONnEDmQU=pQFPp^&Ol{W{i#+I39fq=_<FZ{4)Q(*dZ2*`bUc{At6IX9H>t?~M?"
    "B*m&vyKniMS=5Q8V+tZajkBa)auu;ZdumGKjKl1sWE4W%JwO3{79T!TgqP~qOdINEf6G-;u%yzQX<-"
    "mjk0j<S5>$}A{=^pplbq^{?bez&D~hwca8Typ5u4<mzVf&#*y?Py~4lI`Dccc{<y;X{I4Sa)!=`xra$nX)5m<szcOA"
    "(2ezMn$G_m;8o4f+?~PHupA=S`v{#(4H?o@1Bx(;Yiang2-"
    "oyXk)F!wk$ALXg^prdul1r}&$SVKijr7hd{2~9^;E#m8pZK3II{bmLKEofcU#s&S<8?814}UPr?-"
    "_6M`_=2|=Ue=ak$%d5ua*`o{QLi#fswlM#5-1-B-?dV+_tOA`-i^AkXfN<c6uZk6^Bn6pzBlphA1-"
    "%uO#g@B%+iokw3{Af)2!U>eO9U10G;tVlC{(M1Kzu9UoSUP=*BxE6*@Kf@H-"
    "V6%{AX9s;2kz^vpHhQ=Vo$3~2hkccQTp^l%C6>ZN7&;{0sFLZ9My}Z_ld-z#V-"
    "8JYW{fq&0MTJhexhxxeTm(Kb7Ij_0Z;BM-llF}C0z(R0ZNCe>tR7*w#SlJ)_Ic@`%)<O;c18FhGgqX3bPOqpND4ADL"
    "6Syf5{3*fSPCA7AK}xMeK6~a>mZ<b(NaL6BxVFJS!#3gt;fsxq`Cs|b7)@u(ugqV;gx~<OF|zf5T6<30X<L5ogFG3i"
    "u|^Oo*U*Fr%3#*4kzSR%!-nWj!zohKqu|P*_Mc-"
    "(7FYP51as^seFVYAM^XXznhUQpcCly9#(XxajguuXrZMsY)Qb5?t?v_!IsCE<tH$gGK|O$S{a}-"
    "19WzX&JEE%m(|>5U)}X8ov5Jt)Qw`Ova=OL4hYo2X!}86YU;efE+e2tSwz4VG_?uNTFz+=pwsvlZfW$o"
)


def matrix() -> sps.csr_array:
    return sps.random_array((5, 6), density=0.4, format="csr", rng=np.random.default_rng(1))


def read(text: str) -> object:
    return pickle.loads(zlib.decompress(base64.b85decode(text)))


def test_a_tensor_of_version_0_6_is_read():
    tensor = read(TENSOR)
    assert isinstance(tensor, Tensor)
    assert np.array_equal(tensor.toarray(), matrix().toarray())


def test_parts_of_version_0_6_are_read():
    """In a process where nodes are not frozen, as users have it."""
    code = (
        "import tests.test_pickles as t; print(repr(t.read(t.PARTS).to_scipy().toarray().tolist()))"
    )
    env = {k: v for k, v in os.environ.items() if k != "SPCOMP_FROZEN"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == matrix().toarray().tolist()
