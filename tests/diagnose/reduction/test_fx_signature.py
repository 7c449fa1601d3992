from __future__ import annotations

import pytest

from graphprobe.diagnose.reduction.signature import kind_of, needs_values, normalised, of_death, of_exception
from graphprobe.errors import Raised

GCC = """CppCompileError: C++ compile error

Command:
g++ /tmp/x/uo/cuoekdkutesr4gcxtltb5p2wic3b6cih7usicf2c2go7aln25xch.main.cpp -O3

Output:
/tmp/x/uo/cuoekdkutesr4gcxtltb5p2wic3b6cih7usicf2c2go7aln25xch.main.cpp:{line}:33: error: 'tmp{line}' was not declared
"""


def signature(message, type_="torch._inductor.exc.InductorError", compiling=True):
    return of_exception(Raised(type_, message, ""), compiling=compiling)


def test_numbers_paths_and_addresses_do_not_count():
    assert signature("bad size 3 at 0x7f21 in /a/b.py, buf12") == signature("bad size 41 at 0xff in /c/d.py, buf3")
    assert signature("bad size 3") != signature("bad shape 3")
    assert signature("a") != signature("a", "ValueError")
    assert signature("a") != signature("a", compiling=False)


def test_names_of_kernels_do_not_count():
    assert normalised("in cpp_fused_add_relu_3") == normalised("in cpp_fused_sin_0")


def test_the_first_error_of_the_compiler_counts():
    assert signature(GCC.format(line=15)) == signature(GCC.format(line=7))
    assert "not declared" in signature(GCC.format(line=15))
    assert signature(GCC.format(line=15)) != signature(GCC.format(line=15).replace("declared", "found"))


def test_the_op_counts():
    text = "LoweringException: AssertionError: planted\n  target: {}\n  args[0]: TensorBox(1)"
    assert signature(text.format("aten.relu.default")) != signature(text.format("aten.sin.default"))
    assert signature(text.format("aten.relu.default")).endswith("at aten.relu.default")


def test_what_a_wrapper_wraps_counts():
    text = "backend='mine' raised:\n{}: no\n\nSet TORCHDYNAMO_VERBOSE=1"
    assert signature(text.format("KeyError")) != signature(text.format("ValueError"))


def test_running_out_of_memory_is_one_failure_however_it_is_said():
    first = signature("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 8 bytes")
    assert first == signature("", "MemoryError")


@pytest.mark.parametrize(
    ("text", "kind", "by_value"),
    [
        (of_death("SIGSEGV"), "segfault", False),
        (of_death(None), "hang", False),
        ("wrong_value", "wrong_value", True),
        ("crash_compile E: x", "crash_compile", False),
        ("nonfinite matching x", "nonfinite", True),
    ],
)
def test_a_signature_begins_with_the_kind(text, kind, by_value):
    assert kind_of(text) == kind
    assert needs_values(text) is by_value


def test_an_empty_message():
    assert signature("", "ValueError") == "crash_compile ValueError: "
