from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from autotune.workloads.data import make_requests
from autotune.workloads.models import bert_base, dlrm, minilm, mlp, resnet50, yolov5s
from autotune.workloads.models.weights import POOL_SIZE


def parameter_count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_exact() -> None:
    assert parameter_count(mlp.build()[0]) == 2_427_968
    assert parameter_count(dlrm.build()[0]) == 54_294_273
    assert parameter_count(minilm.build()[0]) == 22_713_216


@pytest.mark.parametrize(
    ("model", "parameters", "gigaflops"),
    [
        (resnet50, 25_557_032, 8.18),
        (bert_base, 109_482_240, 21.7),  # 128 tokens
        (yolov5s, 7_235_389, 16.43),  # decoding included
    ],
)
def test_the_models_people_know_have_their_published_size_and_work(
    model: ModuleType, parameters: int, gigaflops: float
) -> None:
    network, inputs = model.build()
    assert parameter_count(network) == parameters
    (request,) = make_requests(inputs, 1, 1, 0)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        output = network.eval()(*map(torch.as_tensor, request))
    assert counter.get_total_flops() / 1e9 == pytest.approx(gigaflops, rel=0.01)
    tensors = output if isinstance(output, tuple) else (getattr(output, "logits", output),)
    assert all(torch.isfinite(tensor).all() for tensor in tensors)


def test_a_bert_gets_ids_of_its_vocabulary_a_mask_of_ones_and_two_segments() -> None:
    _, inputs = bert_base.build("small", length=7)
    ids, mask, segments = make_requests(inputs, 50, 1, 0)[0]
    assert ids.shape == mask.shape == segments.shape == (50, 7)
    assert (ids.min(), ids.max()) == (1, 99)
    assert (mask == 1).all()
    assert set(segments.ravel()) == {0, 1}


def test_a_bert_heeds_its_mask() -> None:
    model, inputs = bert_base.build("small", length=8)
    ids, mask, segments = map(torch.as_tensor, make_requests(inputs, 1, 1, 0)[0])
    padded = mask.clone()
    padded[:, 5:] = 0
    with torch.inference_mode():
        short, _ = model.eval()(ids[:, :5], mask[:, :5], segments[:, :5])
        long, _ = model(ids, padded, segments)
    assert torch.allclose(short, long[:, :5], atol=1e-5)


def test_large_weights_are_spread_as_published_and_no_two_rows_are_alike() -> None:
    model, _ = minilm.build()
    words = model.bert.embeddings.word_embeddings.weight
    assert words.numel() > 2 * POOL_SIZE
    assert words.std().item() == pytest.approx(0.02, rel=0.01)
    assert len(torch.unique(words[:, 0])) > 0.99 * len(words)
    assert torch.equal(model.bert.embeddings.position_ids[0], torch.arange(512))


def test_a_detector_decodes_boxes_inside_and_around_the_image() -> None:
    model, inputs = yolov5s.build("small")
    (images,) = map(torch.as_tensor, make_requests(inputs, 2, 1, 0)[0])
    with torch.inference_mode():
        boxes = model.eval()(images)
    cells = sum((64 // stride) ** 2 for stride in yolov5s.STRIDES)
    assert boxes.shape == (2, 3 * cells, 85)
    assert boxes[..., :2].min() > -16 and boxes[..., :2].max() < 64 + 32
    assert (boxes[..., 4:] >= 0).all() and (boxes[..., 4:] <= 1).all()
    centres = boxes[0, : 3 * 64, 0].view(3, 8, 8)  # the finest scale: eight cells of 8 pixels
    assert (centres.diff(dim=-1) > 0).float().mean() > 0.9


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
