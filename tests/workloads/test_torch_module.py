from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autotune.core.errors import CompileError, UnavailableError, UsageError
from autotune.core.records import Config, InputSpec, Lengths, WorkloadSpec
from autotune.workloads import check_workload, preload_modules, user_code
from autotune.workloads.base import Program
from autotune.workloads.data import make_requests
from autotune.workloads.outputs import figures_of
from autotune.workloads.torch_module import MODELS

X = (InputSpec(name="x", shape=("batch", 16)),)
Build = Callable[..., Program]
Write = Callable[..., Path]


def run(program: Program, batch_size: int, seed: int = 0) -> object:
    (request,) = make_requests(program.inputs, batch_size, 1, seed)
    assert program.run is not None
    return program.run(
        *(
            torch.as_tensor(array).to(getattr(torch, spec.dtype))
            for array, spec in zip(request, program.inputs, strict=True)
        )
    )


# --- built-in models ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_small_built_ins_run_for_any_batch(build_program: Build, model: str) -> None:
    program = build_program(model, options={"size": "small"})
    for batch_size in (1, 3):
        output = run(program, batch_size)
        logits = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
        assert logits.shape[0] == batch_size
        assert torch.isfinite(logits).all()
    assert program.versions["torch"] == torch.__version__


@pytest.mark.parametrize("model", MODELS)
def test_the_seed_decides_the_weights(build_program: Build, model: str) -> None:
    def figures(seed: int) -> list[list[float]]:
        program = build_program(model, seed=seed, options={"size": "small"})
        (found, *_) = figures_of(run(program, 2), 2, 0)
        assert found.figures is not None
        return found.figures.tolist()  # type: ignore[no-any-return]

    assert figures(0) == figures(0)
    assert figures(0) != figures(1)


def test_an_unknown_option_or_size_of_a_built_in_is_refused() -> None:
    for model, options, message in (
        ("mlp", {"sise": "small"}, "sise"),
        ("mlp", {"length": 8}, "length"),
        ("mlp", {"size": "huge"}, "'huge'.*full, small"),
        ("minilm", {"length": 513}, "513.*1 to 512"),
        ("minilm", {"length": "long"}, "'long'"),
    ):
        with pytest.raises(UsageError, match=rf"workload\.options\..*{message}"):
            check_workload(WorkloadSpec(kind="torch", model=model, options=options))


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        return None if name == "transformers" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    check_workload(WorkloadSpec(kind="torch", model="mlp"))
    with pytest.raises(UnavailableError, match=r"transformers.*autotune-npu\[cpu\]"):
        check_workload(WorkloadSpec(kind="torch", model="resnet50"))


def test_checking_and_preloading_import_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autotune import workloads\n"
        "from autotune.core.records import WorkloadSpec\n"
        "from autotune.workloads.torch_module import MODELS\n"
        "for model in MODELS:\n"
        "    spec = WorkloadSpec(kind='torch', model=model)\n"
        "    workloads.check_workload(spec)\n"
        "    assert workloads.preload_modules(spec)[0] == 'torch'\n"
        "assert not {'torch', 'transformers', 'optuna'} & set(sys.modules)"
    )
    root = str(Path(user_code.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False)
    assert done.returncode == 0


# --- a user's file -----------------------------------------------------------------------------


def test_eval_mode_and_no_gradients(build_program: Build, user_file: Write) -> None:
    path = user_file(
        "def make():\n"
        "    global model\n"
        "    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))\n"
        "    return model\n"
    )
    program = build_program(f"{path}:make")
    output = run(program, 1)  # in training mode a batch of 1 raises
    assert isinstance(output, torch.Tensor) and output.is_inference()
    (model,) = (
        vars(module)["model"]
        for name, module in list(sys.modules.items())
        if name.startswith("autotune_user_") and getattr(module, "__file__", "") == str(path)
    )
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert torch.equal(model[1].running_mean, torch.zeros(16))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("nn.Linear(16, 4)", (("batch", 16), "float32")),
        ("nn.Sequential(nn.Flatten(), nn.Linear(16, 4))", (("batch", 16), "float32")),
        ("nn.Sequential(nn.Embedding(100, 8), nn.Flatten())", (("batch",), "int64")),
        ("nn.Conv2d(3, 4, 7, stride=4)", (("batch", 3, 224, 224), "float32")),
    ],
)
def test_inputs_are_inferred_from_the_first_layer_and_that_is_said(
    build_program: Build, user_file: Write, model: str, inputs: tuple[object, str]
) -> None:
    path = user_file(f"def make(): return {model}")
    program = build_program(f"{path}:make")
    (found,) = program.inputs
    assert (found.shape, found.dtype) == inputs
    assert "inferred" in program.notes[0]
    run(program, 2)


def test_inferred_ids_are_within_the_table(build_program: Build, user_file: Write) -> None:
    path = user_file("def make(): return nn.Sequential(nn.Embedding(3, 8))")
    program = build_program(f"{path}:make")
    run(program, 200)
    assert program.inputs[0].high == 3


@pytest.mark.parametrize(
    "code",
    [
        "def make():\n"
        "    return (lambda a: a * 2), [{'name': 'a', 'shape': ['batch', 3], 'dtype': 'int32'}]",
        "class M(nn.Module):\n"
        "    inputs = [{'name': 'a', 'shape': ['batch', 3], 'dtype': 'int32'}]\n"
        "    def forward(self, a): return a * 2\n"
        "def make(): return M()",
    ],
)
def test_inputs_can_be_declared_beside_the_model(
    build_program: Build, user_file: Write, code: str
) -> None:
    program = build_program(f"{user_file(code)}:make")
    assert program.inputs == (InputSpec(name="a", shape=("batch", 3), dtype="int32"),)
    assert program.notes == ()


def test_the_space_files_inputs_win(build_program: Build, user_file: Write) -> None:
    path = user_file("def make(): return nn.Linear(16, 4), [{'name': 'a', 'shape': ['batch', 3]}]")
    assert build_program(f"{path}:make", inputs=X).inputs == X


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(): return lambda a, b: a", "no layer"),
        ("def make(): return nn.Sequential(nn.ReLU())", "no layer"),
        ("class M(nn.Linear):\n    def forward(self, a, b): return a\ndef make(): return M(2, 2)",
         "takes several"),
    ],
)  # fmt: skip
def test_inputs_nobody_can_know_are_asked_for(
    build_program: Build, user_file: Write, code: str, message: str
) -> None:
    with pytest.raises(UsageError, match=rf"workload\.inputs: .*{message}"):
        build_program(f"{user_file(code)}:make")


@pytest.mark.parametrize(
    "declared", ["[{'name': 'a'}]", "[{'name': 'a', 'shape': [1], 'typ': 1}]", "[3]"]
)
def test_inputs_declared_wrongly_are_refused(
    build_program: Build, user_file: Write, declared: str
) -> None:
    path = user_file(f"def make(): return nn.Linear(2, 2), {declared}")
    with pytest.raises(UsageError, match="declares"):
        build_program(f"{path}:make")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_another_precision_casts_the_model_and_its_float_inputs(
    build_program: Build, precision: str
) -> None:
    program = build_program("dlrm", precision=precision, options={"size": "small"})
    assert program.precision == precision
    assert [spec.dtype for spec in program.inputs[:2]] == [precision, "int64"]
    output = run(program, 2)
    assert isinstance(output, torch.Tensor) and output.dtype == getattr(torch, precision)


def test_precision_needs_a_module(build_program: Build, user_file: Write) -> None:
    path = user_file("def make(): return lambda x: x")
    with pytest.raises(UsageError, match=r"workload\.precision"):
        build_program(f"{path}:make", precision="bfloat16", inputs=X)


@pytest.mark.parametrize(
    ("precision", "dtype", "message"),
    [
        ("int4", "float32", r"precision: .*'int4'"),
        ("float32", "flaot32", r"inputs: x: .*'flaot32'"),
    ],
)
def test_unknown_types_are_found_early(precision: str, dtype: str, message: str) -> None:
    inputs = (InputSpec(name="x", shape=("batch",), dtype=dtype),)
    spec = WorkloadSpec(kind="torch", model="mlp", precision=precision, inputs=inputs)
    with pytest.raises(UsageError, match=message):
        check_workload(spec)


@pytest.mark.parametrize(
    "code",
    [
        "def make():\n    m = nn.Linear(16, 16); m.act = lambda x: x; return m",
        "def make():\n"
        "    class Local(nn.Module):\n"
        "        def forward(self, x): return x * 2\n"
        "    return Local()",
        "make = lambda: nn.Linear(16, 16)",
        "class make(nn.Linear):\n    def __init__(self): super().__init__(16, 16)",
        "class make(nn.Module):\n    def forward(self, x): return x * 2",
    ],
)
def test_what_cannot_be_pickled_works(build_program: Build, user_file: Write, code: str) -> None:
    output = run(build_program(f"{user_file(code)}:make", inputs=X), 4)
    assert isinstance(output, torch.Tensor) and output.shape == (4, 16)


def test_a_factory_gets_the_options_and_the_configuration_it_names(
    build_program: Build, user_file: Write
) -> None:
    path = user_file(
        "def make(config, width, *, depth=2):\n"
        "    count = depth + config.batch_size\n"
        "    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))"
    )
    options = {"width": 16, "depth": 3}
    program = build_program(f"{path}:make", Config(batch_size=2), options=options, inputs=X)
    output = run(program, 2)
    assert isinstance(output, torch.Tensor) and output.shape == (2, 16)


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        ("width", {}, "needs 'width'"),
        ("width, /", {"width": 1}, "'width'"),
        ("width=1", {"widht": 2}, r"workload\.options\.widht: .*did you mean 'width'"),
    ],
)
def test_a_factory_with_other_parameters_is_a_mistake(
    build_program: Build, user_file: Write, signature: str, options: dict[str, object], message: str
) -> None:
    path = user_file(f"def make({signature}): return nn.Linear(16, 16)")
    with pytest.raises(UsageError, match=message):
        build_program(f"{path}:make", options=options)


@pytest.mark.parametrize(
    "code",
    [
        "def make(): return torch.jit.script(nn.Linear(16, 16))",
        "def make(): return torch.jit.trace(nn.Linear(16, 16), torch.zeros(1, 16))",
        "def make(): return exported()",
        "def make(): return exported().module()",
        "make = nn.Linear(16, 16)",
    ],
)
def test_scripted_and_exported_modules_and_ready_ones_are_models_too(
    build_program: Build, user_file: Write, code: str
) -> None:
    exported = (
        "def exported():\n"
        "    sizes = ({0: torch.export.Dim('batch')},)\n"
        "    example = (torch.zeros(2, 16),)\n"
        "    return torch.export.export(nn.Linear(16, 16), example, dynamic_shapes=sizes)\n"
    )
    inputs = (InputSpec(name="input", shape=("batch", 16)),)
    output = run(build_program(f"{user_file(exported + code)}:make", inputs=inputs), 3)
    assert isinstance(output, torch.Tensor) and output.shape == (3, 16)
    assert not output.requires_grad


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nn.ModuleDict({'a': nn.Linear(16, 16)})", "a ModuleDict has no forward"),
        ("nn.ModuleList([nn.Linear(16, 16)])", "a ModuleList has no forward"),
        ("nn.LazyLinear(4)", "call it once in the factory"),
    ],
)
def test_modules_that_cannot_be_called_are_a_mistake(
    build_program: Build, user_file: Write, model: str, message: str
) -> None:
    path = user_file(f"def make(): return {model}")
    with pytest.raises(UsageError, match=rf"workload\.model: .*{message}"):
        build_program(f"{path}:make", inputs=X)


def test_quantised_modules_say_so(build_program: Build, user_file: Write) -> None:
    path = user_file(
        "def make():\n"
        "    net = nn.Sequential(nn.Linear(16, 16))\n"
        "    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})\n"
    )
    assert build_program(f"{path}:make", inputs=X).precision == "int8"


@pytest.mark.parametrize("returned", ["None", "3", "[nn.Linear(2, 2)]", "(None, [])"])
def test_a_factory_that_returns_no_model_is_a_mistake(
    build_program: Build, user_file: Write, returned: str
) -> None:
    path = user_file(f"def make(): return {returned}")
    with pytest.raises(UsageError, match=r"factories\.py:make returned"):
        build_program(f"{path}:make")


def test_what_a_factory_raises_is_the_trials_matter(build_program: Build, user_file: Write) -> None:
    path = user_file("def make(): raise MemoryError('too large')")
    with pytest.raises(MemoryError, match="too large"):
        build_program(f"{path}:make")


def test_a_user_file_finds_its_neighbours(
    build_program: Build, user_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    user_file("WIDTH = 16", name="neighbour_of_the_test.py")
    path = user_file("import neighbour_of_the_test as n\ndef make(): return nn.Linear(n.WIDTH, 2)")
    assert build_program(f"{path}:make").inputs[0].shape == ("batch", 16)


def test_two_files_of_one_name_are_two_modules(build_program: Build, tmp_path: Path) -> None:
    for folder, width in (("a", 3), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(
            f"from torch import nn\ndef make(): return nn.Linear({width}, 1)"
        )
    shapes = [
        build_program(f"{tmp_path}/{folder}/model.py:make").inputs[0].shape for folder in "ab"
    ]
    assert shapes == [("batch", 3), ("batch", 5)]


# --- found without running the file ------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nosuch.py:make", r"no file .*/nosuch\.py"),
        ("factories.py:maek", r"factories\.py has no 'maek'; did you mean 'make'"),
        ("factories.py:_KEEP", "not callable"),
        ("factories.py:NUMBER", "not callable"),
        ("broken.py:make", r"broken\.py:2: "),
        ("nosuch:fn", r"no built-in model 'nosuch:fn' \(there are mlp, dlrm, .*yolov5s\)"),
        ("factories", "no built-in model 'factories'"),
    ],
)
def test_a_wrong_factory_is_found_early(tmp_path: Path, model: str, message: str) -> None:
    (tmp_path / "factories.py").write_text(
        "raise RuntimeError('this file must not be run')\n_KEEP = []\nNUMBER: int = 3\n"
        "def make(): ...\n"
    )
    (tmp_path / "broken.py").write_text("import torch\ndef make(:\n")
    with pytest.raises(UsageError, match=message):
        check_workload(WorkloadSpec(kind="torch", model=model, base_dir=str(tmp_path)))


@pytest.mark.parametrize(
    "code",
    [
        "def make(): ...",
        "make = print",
        "from os import getcwd as make",
        "if True:\n    def make(): ...\nelse:\n    pass",
        "try:\n    import make\nexcept ImportError:\n    make = None.__class__",
        "other, make = print, print",
        "from somewhere import *",
        "def __getattr__(name): return print",
        "with open('x') as f:\n    make = f.read",
    ],
)
def test_names_bound_in_any_way_are_accepted(tmp_path: Path, code: str) -> None:
    (tmp_path / "file.py").write_text(code)
    check_workload(WorkloadSpec(kind="torch", model=f"{tmp_path}/file.py:make"))


def test_a_name_that_turns_out_wrong_is_a_mistake(build_program: Build, user_file: Write) -> None:
    path = user_file("make = dict(a=1)\nfrom os.path import *")
    with pytest.raises(UsageError, match="is a dict, not a function"):
        build_program(f"{path}:make")
    with pytest.raises(UsageError, match="has no 'nosuch'"):
        build_program(f"{path}:nosuch")


def test_a_file_that_cannot_be_imported_is_a_mistake(
    build_program: Build, user_file: Write
) -> None:
    path = user_file("import no_such_package_here\ndef make(): ...")
    with pytest.raises(UsageError, match=r"importing .*ModuleNotFoundError: .*no_such_package"):
        build_program(f"{path}:make")


def test_the_zygote_preloads_what_the_file_imports_of_known_packages(user_file: Write) -> None:
    path = user_file(
        "import os, json\nimport torch.nn.functional as F\nfrom transformers.models.bert "
        "import modeling_bert\nfrom . import x\nimport unsafe_thing\ndef make(): import numpy\n"
    )
    spec = WorkloadSpec(kind="torch", model=f"{path}:make")
    assert preload_modules(spec) == ("torch", "torch.nn.functional", "transformers.models.bert")


def test_a_built_in_is_preloaded_with_its_parts() -> None:
    found = preload_modules(WorkloadSpec(kind="torch", model="resnet50"))
    assert "transformers.models.resnet.modeling_resnet" in found
    assert "autotune.workloads.models.dlrm" in preload_modules(
        WorkloadSpec(kind="torch", model="dlrm")
    )


# --- lengths -----------------------------------------------------------------------------------


def test_padding_does_not_change_what_a_built_in_computes_of_an_item(build_program: Build) -> None:
    program = build_program(
        "minilm", options={"size": "small"}, lengths=Lengths(low=4, high=30, multiple_of=8)
    )
    alone, many = (make_requests(program.inputs, size, 1, 0)[0] for size in (1, 12))
    assert alone[0].shape[1] < many[0].shape[1]
    length = int(alone[1].sum())
    assert program.run is not None
    one, other = (program.run(*map(torch.as_tensor, r))[0][0, :length] for r in (alone, many))
    assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        (Lengths(low=4, high=600), {}, r"lengths: 600 is above the 512 of minilm"),
        (Lengths(values=(5,)), {"length": 9}, "lengths says it already"),
    ],
)
def test_lengths_that_a_built_in_does_not_take_are_refused(
    lengths: Lengths, options: dict[str, object], message: str
) -> None:
    spec = WorkloadSpec(kind="torch", model="minilm", lengths=lengths, options=options)
    with pytest.raises(UsageError, match=message):
        check_workload(spec)


# --- ways to run a module ----------------------------------------------------------------------


def test_another_memory_format_changes_weights_and_no_output(build_program: Build) -> None:
    plain, last = (
        build_program(
            "resnet50",
            Config(batch_size=2, extra=(("torch.memory_format", name),)),
            options={"size": "small"},
        )
        for name in ("contiguous", "channels_last")
    )
    one, other = (run(program, 2).logits for program in (plain, last))  # type: ignore[attr-defined]
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_compiling_is_timed_apart_and_is_for_whole_batches(
    build_program: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def compile_(call: Callable[..., object], *, dynamic: bool) -> Callable[..., object]:
        def slow(*tensors: torch.Tensor) -> object:
            asked.append((tensors[0].shape[0], dynamic))
            time.sleep(0.05)
            return call(*tensors)

        return slow

    monkeypatch.setattr(torch, "compile", compile_)
    config = Config(batch_size=6, micro_batch_count=2, extra=(("torch.compile", True),))
    program = build_program("mlp", config, options={"size": "small"})
    assert asked == [(3, False)]
    assert program.compile_s >= 0.05
    assert not program.takes_part_batches


def test_what_cannot_be_compiled_is_a_compile_error(
    build_program: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_(call: object, *, dynamic: bool) -> object:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", compile_)
    with pytest.raises(CompileError, match=r"torch\.compile failed: RuntimeError: no C"):
        build_program("mlp", Config(extra=(("torch.compile", True),)), options={"size": "small"})


@pytest.mark.parametrize("name", ["torch.memory_format", "workload.precision"])
def test_what_needs_a_module_says_so_for_a_function(
    build_program: Build, user_file: Write, name: str
) -> None:
    path = user_file("def make(): return lambda x: x")
    config = Config(extra=(("torch.memory_format", "channels_last"),))
    with pytest.raises(UsageError, match=rf"{name}: needs an nn\.Module"):
        if name == "workload.precision":
            build_program(f"{path}:make", precision="bfloat16", inputs=X)
        else:
            build_program(f"{path}:make", config, inputs=X)
