"""The scheduler's graph as text: a table, then Inductor's own long form of each node."""

from __future__ import annotations

from graphprobe.probe.formats import IRBuffer, IRGraph, IRNode


def ir_text(ir: IRGraph, *, title: str = "") -> str:
    """What the `.txt` files hold."""
    lines = [f"# {title}"] if title else []
    reading = [b.name for b in ir.inputs]
    lines += [f"# {len(ir.nodes)} scheduler nodes", f"# inputs ({len(reading)}): {', '.join(reading)}"]
    lines += [f"# outputs ({len(ir.outputs)}): {', '.join(ir.outputs)}", "#"]
    rows = [("node", "kind", "reads", "writes", "origins"), *(_row(node) for node in ir.nodes)]
    widths = [min(max(len(row[i]) for row in rows), 60) for i in range(4)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True))
        lines.append(f"# {cells}  {row[4]}".rstrip())
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(node.text for node in ir.nodes) + "\n"


def buffer_text(buffer: IRBuffer) -> str:
    """`buf3 float32[4, 8][8, 1]cpu`; shape and stride in elements."""
    if buffer.dtype is None:
        return buffer.name
    shape, stride = ", ".join(buffer.shape or ()), ", ".join(buffer.stride or ())
    return f"{buffer.name} {buffer.dtype}[{shape}][{stride}]{buffer.device or ''}"


def _row(node: IRNode) -> tuple[str, str, str, str, str]:
    written = [(buffer_text(out), ", ".join(out.mutates)) for out in node.outputs]
    writes = ", ".join(f"{text} (in {mutated})" if mutated else text for text, mutated in written)
    origins = ", ".join(f"{origin.name} = {origin.target}" for origin in node.origins)
    return node.name, node.kind, ", ".join(node.inputs), writes, origins
