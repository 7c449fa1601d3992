"""From a launch back to the nodes it carries out."""

from graphprobe.internals.ir.records import IRBuffer, IRNode
from graphprobe.internals.launch_io import buffers_by_line
from graphprobe.probe.lowering import nodes_by_launch

CODE = """
def call(self, args):
    a, b = args
    buf0 = empty_strided_cpu((2, ), (1, ), torch.float32)
    cpp_fused_add_0(a, b, buf0)
    buf2 = buf0; del buf0  # reuse
    extern_kernels.mm(reinterpret_tensor(buf2, (1, 2), (2, 1), 0), b, out=buf3)
    buf4 = torch.ops.aten.sort.default(buf3, stable=True)
    buf5 = buf4[0]
    cpp_fused_mul_1(buf5, buf2)
    return (buf2, )
"""


def node(name: str, *buffers: str) -> IRNode:
    return IRNode(name=name, kind="compute", type="SchedulerNode", outputs=tuple(IRBuffer(b) for b in buffers))


def test_names_by_line() -> None:
    assert buffers_by_line(CODE) == {
        5: ("a", "b", "buf0"),
        7: ("buf2", "b", "buf3"),
        8: ("buf3", "buf4"),
        10: ("buf5", "buf2"),
    }


def test_the_first_launch_that_names_a_buffer_runs_its_node() -> None:
    names = [("a", "b", "buf0"), ("buf2", "b", "buf3"), ("buf3", "buf4"), ("buf5", "buf2", "buf6")]
    nodes = [node("op0_op1", "buf0", "buf1"), node("op3", "buf3"), node("op4", "buf4"), node("op6", "buf6", "buf7")]
    assert [[n.name for n in found] for found in nodes_by_launch(names, nodes)] == [
        ["op0_op1"],
        ["op3"],
        ["op4"],
        ["op6"],
    ]


def test_a_node_is_run_once_and_what_nobody_names_stays_out() -> None:
    found = nodes_by_launch([("buf0",), ("buf0",)], [node("op0", "buf0"), node("op9", "buf9")])
    assert [[n.name for n in ran] for ran in found] == [["op0"], []]
