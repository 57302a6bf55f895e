"""The table of tensors that C++ tests of `holdfast plan` read is what transformers says."""

import json
from pathlib import Path

import planned_models

import holdfast

TABLE = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "models" / "transformers.json"


def test_the_table_is_what_the_classes_have():
    assert json.loads(TABLE.read_text())["models"] == list(planned_models.table())


def test_a_module_and_its_configuration_give_the_same_plan(tmp_path):
    """So the rules by name hold for the real modules, whatever the order of their tensors is."""
    for number, row in enumerate(planned_models.table()):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(row["config"]))
        module = planned_models.model_of(*planned_models.CONFIGS[number])
        for source, target in [("tp=1", "tp=4,qkv=blocked"), ("tp=2,dp=2", "tp=4,pp=2,zero=3")]:
            figures = [json.loads(holdfast.plan(source, target, model=model).json)["figures"]
                       for model in (path, holdfast.layout_of(module))]
            assert figures[0] == figures[1], row["config"]
