"""Two failures are the same one where their signatures are equal."""

from graphprobe.diagnose.reduction.signature import kind_of, needs_values, normalised, of_death, of_exception
from graphprobe.errors import Raised

GCC = """CppCompileError: C++ compile error

Command:
g++ /tmp/x/uo/cuoekdkutesr4gcxtltb5p2wic3b6cih7usicf2c2go7aln25xch.main.cpp -O3

Output:
/tmp/x/uo/cuoekdkutesr4gcxtltb5p2wic3b6cih7usicf2c2go7aln25xch.main.cpp:{}:33: error: 'tmp{}' was not {}
"""
OP = "LoweringException: AssertionError: planted\n  target: aten.{}.default\n  args[0]: TensorBox(1)"
WRAPPED = "backend='mine' raised:\n{}: no\n\nSet TORCHDYNAMO_VERBOSE=1"
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 8 bytes"


def signature(message, type_="torch._inductor.exc.InductorError", compiling=True):
    return of_exception(Raised(type_, message, ""), compiling=compiling)


def test_signatures() -> None:
    for first, second, same in (
        (("bad size 3 at 0x7f21 in /a/b.py, buf12",), ("bad size 41 at 0xff in /c/d.py, buf3",), True),
        (("bad size 3",), ("bad shape 3",), False),
        (("a",), ("a", "ValueError"), False),
        (("a",), ("a", "torch._inductor.exc.InductorError", False), False),
        ((GCC.format(15, 15, "declared"),), (GCC.format(7, 7, "declared"),), True),
        ((GCC.format(15, 15, "declared"),), (GCC.format(15, 15, "found"),), False),
        ((OP.format("relu"),), (OP.format("sin"),), False),
        ((WRAPPED.format("KeyError"),), (WRAPPED.format("ValueError"),), False),
        ((NO_MEMORY,), ("", "MemoryError"), True),
    ):
        assert (signature(*first) == signature(*second)) is same
    assert normalised("in cpp_fused_add_relu_3") == normalised("in cpp_fused_sin_0")
    assert "not declared" in signature(GCC.format(15, 15, "declared"))
    assert signature(OP.format("relu")).endswith("at aten.relu.default")
    assert signature("", "ValueError") == "crash_compile ValueError: "
    for text, kind, by_value in (
        (of_death("SIGSEGV"), "segfault", False),
        (of_death(None), "hang", False),
        ("wrong_value", "wrong_value", True),
        ("crash_compile E: x", "crash_compile", False),
        ("nonfinite matching x", "nonfinite", True),
    ):
        assert (kind_of(text), needs_values(text)) == (kind, by_value)
