from __future__ import annotations

import pytest
import torch

from autotune.workloads.models import dlrm, mlp, resnet50


def parameter_count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_exact() -> None:
    assert parameter_count(mlp.build()[0]) == 2_427_968
    assert parameter_count(dlrm.build()[0]) == 54_294_273
    assert parameter_count(resnet50.build()[0]) == 25_557_032


def test_dlrm_takes_27_separate_inputs() -> None:
    _, inputs = dlrm.build("small")
    assert len(inputs) == 27
    assert inputs[0].shape == ("batch", 13)
    assert all(spec.shape == ("batch",) and spec.dtype == "int64" for spec in inputs[1:])


def test_dlrm_ids_cover_their_tables_and_no_more() -> None:
    model, inputs = dlrm.build()
    rows = [table.num_embeddings for table in model.tables]
    assert [spec.high for spec in inputs[1:]] == rows
    assert max(rows) == 100_000 and min(rows) == 3


def test_dlrm_computes_what_the_paper_says() -> None:
    """Against the plain form: the dot product of every pair of vectors, in a loop."""
    model, inputs = dlrm.build("small")
    batch = 4
    dense = torch.randn(batch, 13)
    ids = [torch.randint(0, int(spec.high or 0), (batch,)) for spec in inputs[1:]]
    with torch.no_grad():
        output = model(dense, *ids)
        bottom = model.bottom(dense)
        for item in range(batch):
            vectors = [bottom[item]] + [
                t.weight[i[item]] for t, i in zip(model.tables, ids, strict=True)
            ]
            pairs = [vectors[i] @ vectors[j] for i in range(27) for j in range(i)]
            top = model.top(torch.cat([bottom[item], torch.stack(pairs)]))
            assert output[item].item() == pytest.approx(torch.sigmoid(top).item(), rel=1e-5)


def test_dlrm_tables_have_no_constant_rows() -> None:
    model, _ = dlrm.build()
    weight = max((t.weight for t in model.tables), key=len)
    assert weight.std(dim=1).min() > 0
    assert weight.abs().max() <= len(weight) ** -0.5
    assert not torch.equal(weight[0], weight[1])
