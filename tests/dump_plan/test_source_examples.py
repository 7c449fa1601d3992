"""Every example of TorchAir's page, as it stands there but for folders that exist here."""

from pathlib import Path

import pytest

from dump_plan.conftest import Plan
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan import STATS, ModelEntry, WatchEntry
from graphprobe.select import layers_from_list

MODELS = """
{                                                                                            
	"dump":{
		"dump_list":[                                                                        
			{	"model_name":"ResNet-101"
			},
			{                                                                                
				"model_name":"ResNet-50",
				"layer":[
				      "conv1conv1_relu",
				      "res2a_branch2ares2a_branch2a_relu",
				      "res2a_branch1",
				      "pool1"
				] 
			}  
		],  
		"dump_path":"out",
                "dump_mode":"output",
		"dump_op_switch":"off",
                "dump_data":"tensor"
	}                                                                                        
}
"""  # noqa: E101, W291
SINGLE_OPS = """
{
    "dump":{
        "dump_path":"out",
        "dump_list":[], 
	"dump_op_switch":"on",
        "dump_data":"tensor"
    }
}
"""  # noqa: W291
OVERFLOW = """
{
    "dump":{
        "dump_path":"out",
        "dump_debug":"on"
    }
}
"""
WATCHER = """
{
    "dump":{
        "dump_list":[
            {
                "layer":["A", "B"],
                "watcher_nodes":["C", "D"]
            }
        ],
        "dump_path":"out/",
        "dump_mode":"output",
        "dump_scene":"watcher"
    }
}
"""


def test_models(plan_of: Plan, tmp_path: Path) -> None:
    plan = plan_of(MODELS)
    names = ["conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu", "res2a_branch1", "pool1"]
    assert plan.models == (
        ModelEntry("ResNet-101", where="$.dump.dump_list[0]"),
        ModelEntry("ResNet-50", layers_from_list(names), where="$.dump.dump_list[1]"),
    )
    assert (plan.mode, plan.data, plan.single_ops, plan.overflow, plan.watch) == ("output", "tensor", False, False, ())
    assert plan.path == str(tmp_path / "out")
    assert plan.warnings == ()
    assert [entry.model_name for entry in plan.entries_for("ResNet-50")] == ["ResNet-50"]
    assert plan.entries_for("ResNet") == ()


def test_single_ops_overflow_and_watcher(plan_of: Plan) -> None:
    plan = plan_of(SINGLE_OPS)
    assert (plan.single_ops, plan.models, plan.mode, plan.warnings) == (True, (), "all", ())
    plan = plan_of(OVERFLOW)
    assert (plan.overflow, plan.models, plan.single_ops, plan.watch, plan.warnings) == (True, (), False, (), ())
    plan = plan_of(WATCHER)
    layers, nodes = layers_from_list(["A", "B"]), layers_from_list(["C", "D"])
    assert plan.watch == (WatchEntry(layers, nodes, "$.dump.dump_list[0]"),)
    assert (plan.mode, plan.models, plan.overflow, plan.warnings) == ("output", (), False, ())


@pytest.mark.parametrize("way", ["assigned", "by value"])
def test_every_option(tmp_path: Path, way: str) -> None:
    (tmp_path / "dump_config.json").write_text(MODELS)
    config = CompilerConfig()
    values = {
        "enable_dump": True,
        "dump_mode": "all",
        "dump_path": str(tmp_path),
        "quant_dumpable": True,
        "dump_step": "0|1",
        "dump_layer": "Add_1Mul_1 Add2",
        "dump_data": "stats",
        "dump_config_path": str(tmp_path / "dump_config.json"),
    }
    for name, value in values.items():
        if way == "assigned":
            setattr(config.dump_config, name, value)
        else:
            getattr(config.dump_config, name).value = value
    plan = config.dump_config.plan(environ={})
    assert plan.enabled and plan.quant_dumpable
    assert (plan.mode, plan.data, plan.stats, plan.path) == ("all", "stats", STATS, str(tmp_path))
    assert plan.steps is not None and plan.steps.ranges == ((0, 1),)
    assert plan.models == (ModelEntry(layers=layers_from_list(["Add_1Mul_1", "Add2"]), where="dump_config.dump_layer"),)
    assert plan.warnings == (
        "dump_config.dump_mode = 'all' wins over $.dump.dump_mode = 'output'",
        f"dump_config.dump_path = {str(tmp_path)!r} wins over $.dump.dump_path = 'out'",
        "dump_config.dump_data = 'stats' wins over $.dump.dump_data = 'tensor'",
        "dump_config.dump_layer wins over $.dump.dump_list",
    )


def test_the_last_example(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_layer = " Add "
    plan = config.dump_config.plan(environ={})
    assert plan.models[0].layers == layers_from_list(["Add"]) and plan.narrowed
    assert (plan.path, plan.warnings) == (str(tmp_path), ())
