"""Training scripts that look at numbers, each with its own asserts; run by test_values.py.

What they read is not computed by anybody. Each must go the way it would go with a healthy model.
"""

PRELUDE = """
import math, sys
import numpy as np
import torch, torchvision
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def forward():
    host_y = torch.randint(0, 10, (32,))
    x, y = torch.randn(32, 3, 16, 16).cuda(), host_y.cuda()
    out = model(x)
    return x, y, host_y, out, F.cross_entropy(out, y)

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

GUARDS = {
    "a loss that must be finite": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    if not math.isfinite(loss.item()) or torch.isnan(loss) or torch.isinf(loss):
        sys.exit("loss is nan")
    assert loss.item() > 0
    assert not torch.isnan(out).any() and torch.isfinite(out).all()
    step(loss)
""",
    "gradients that must be finite before a step": """
for _ in range(3):
    loss = forward()[-1]
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert 0 < norm.item() < 1e6
    if all(torch.isfinite(p.grad).all() for p in model.parameters()):
        optimizer.step()
    optimizer.zero_grad()
""",
    "a gradient scaler whose scale grows": """
scaler = torch.amp.GradScaler("cuda", growth_interval=2)
scales = []
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = forward()[-1]
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scales.append(scaler.get_scale())
    scaler.update()
    optimizer.zero_grad()
assert scales == [65536, 65536, 131072], scales
""",
    "anomaly detection": """
torch.autograd.set_detect_anomaly(True)
for _ in range(3):
    step(forward()[-1])
""",
    "early stopping and a plateau": """
best, waited = math.inf, 0
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for _ in range(3):
    loss = forward()[-1]
    step(loss)
    waited = 0 if loss.item() < best else waited + 1
    best = min(best, loss.item())
    plateau.step(loss.item())
    assert waited == 0, "stopped early"
assert optimizer.param_groups[0]["lr"] == 1e-3
""",
    "norms in a log": """
for _ in range(3):
    step(forward()[-1])
    for p in model.parameters():
        assert 0 < p.grad.norm().item() < math.inf
        assert 0 <= p.detach().float().std().item() < math.inf
""",
    "booleans": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    assert loss > 0 and not (loss < 0)
    assert torch.equal(out, out) and torch.allclose(out, out)
    assert (out.softmax(-1) <= 1).all() and not (y < 0).any() and not (y > 9).any()
    assert bool((y == y).all())
    step(loss)
""",
}

METRICS = {
    "top-k accuracy": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    top, indices = out.topk(5)
    assert all(0 <= i < 10 for row in indices.tolist() for i in row)
    correct = indices.eq(y[:, None]).any(1).float().mean().item()
    right = (out.argmax(-1) == y).sum().item()
    assert 0 <= correct <= 1 and 0 <= right <= 32
    names = ["class"] * 10
    [names[i] for i in out.argmax(-1).tolist()]
    step(loss)
""",
    "a confusion matrix": """
matrix = torch.zeros(10, 10, dtype=torch.long, device="cuda")
for _ in range(3):
    x, y, host_y, out, loss = forward()
    counted = torch.bincount(y * 10 + out.argmax(-1), minlength=100)
    assert counted.shape == (100,) and counted.min().item() >= 0
    assert counted.sum().item() == 32 and counted.int().sum().item() == 32
    matrix += counted.view(10, 10)
    assert torch.equal(torch.bincount(y, minlength=10).cpu(), torch.bincount(host_y, minlength=10))
    step(loss)
assert (matrix.cpu().numpy() >= 0).all()
""",
    "histograms and pictures": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    step(loss)
    for p in model.parameters():
        for values in (p.data.cpu().numpy(), p.grad.cpu().numpy()):
            counts, edges = np.histogram(values, bins=64)
            assert np.isfinite(values).all() and counts.sum() == values.size
    assert torch.isfinite(torch.histc(out.detach(), bins=10)).all()
    picture = x[0].cpu().numpy()
    assert np.isfinite(picture).all()
    assert "nan" not in repr(out) and "nan" not in repr(x)
""",
    "distributions that check their arguments": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    policy = torch.distributions.Categorical(logits=out)
    action = policy.sample()
    assert all(0 <= one < 10 for one in action.tolist())
    loss = loss - policy.log_prob(action).mean() - policy.entropy().mean()
    torch.distributions.Categorical(probs=out.softmax(-1)).sample()
    torch.distributions.Normal(out, out.exp()).rsample()
    torch.distributions.Bernoulli(torch.sigmoid(out)).sample()
    drawn = torch.multinomial(out.softmax(-1), 1)
    assert drawn.min().item() >= 0 and drawn.max().item() < 10
    np.random.choice(4, p=torch.zeros(4, device="cuda").softmax(0).cpu().double().numpy())
    step(loss)
""",
    "average precision": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    scores, order = out.detach().flatten().sort(descending=True)
    assert sorted(order.tolist()) == list(range(320))
    hits = (out.detach().flatten() > 0.5).float()[order].cumsum(0)
    precision = (hits / torch.arange(1, 321, device="cuda")).cpu().numpy()
    assert np.isfinite(np.trapezoid(precision) if hasattr(np, "trapezoid") else np.trapz(precision))
    step(loss)
""",
    "a search for the learning rate": """
losses = []
for lr in (1e-5, 1e-4, 1e-3):
    loss = forward()[-1]
    step(loss)
    losses.append(loss.item())
    assert losses[-1] <= 4 * min(losses), "diverged"
assert np.isfinite(np.gradient(np.array(losses))).all()
""",
}

DATA_SIZED = {
    "masks of labels that were uploaded": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    assert x[y == 3].shape[0] == int((host_y == 3).sum())
    assert torch.nonzero(y > 4).shape[0] == int((host_y > 4).sum())
    assert torch.unique(torch.tensor([3, 1, 3, 2, 1, 3], device="cuda")).tolist() == [1, 2, 3]
    values, counts = torch.unique(y, return_counts=True)
    assert counts.sum().item() == 32 and values.numel() == host_y.unique().numel()
    repeats = torch.tensor([1, 0, 2], device="cuda")
    assert torch.arange(3, device="cuda").repeat_interleave(repeats).tolist() == [0, 2, 2]
    lengths = torch.tensor([3, 7, 5]).cuda()
    assert int(lengths.max()) == 7 and torch.zeros(3, lengths.max().item()).shape == (3, 7)
    step(loss)
""",
    "an encoder that packs a padded batch for evaluation": """
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(64)).cuda().eval()
lengths = torch.tensor([20, 3, 11, 7])
for _ in range(3):
    loss = forward()[-1]
    padding = (torch.arange(20) >= lengths[:, None]).cuda()
    x = torch.randn(4, 20, 64, device="cuda")
    with torch.no_grad():
        packed = torch._nested_tensor_from_mask(x, ~padding)
        assert packed.numel() == 64 * int(lengths.sum()) and packed.size(0) == 4
        assert encoder(x, src_key_padding_mask=padding).shape == (4, 20, 64)
    step(loss)
""",
    "sequences of many lengths in nested tensors": """
linear = nn.Linear(64, 64).cuda()
for layout in (torch.jagged, torch.strided, torch.jagged):
    sequences = [torch.randn(length, 64) for length in (3, 500, 40)]
    nested = torch.nested.nested_tensor(sequences, layout=layout, device="cuda")
    padded = torch.nested.to_padded_tensor(linear(nested), 0.0)
    assert padded.shape == (3, 500, 64)
    step(forward()[-1] + padded.mean())
""",
    "masks of what was computed": """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    assert out[out > 0.5].numel() in (0, 320)
    assert 1 <= torch.unique(out.argmax(-1)).numel() <= 32
    assert out.masked_select(out > out.mean()).numel() in (0, 320)
    chosen = torch.where(out.max(-1).values > 0.5)[0]
    assert all(0 <= i < 32 for i in chosen.tolist())
    step(loss)
""",
    "boxes that overlap": """
for _ in range(3):
    loss = forward()[-1]
    boxes = torch.rand(50, 4, device="cuda")
    keep = torchvision.ops.nms(boxes, torch.rand(50, device="cuda"), 0.5)
    assert keep.numel() <= 50 and all(0 <= i < 50 for i in keep.tolist())
    step(loss)
""",
    "an assigner of boxes": """
for _ in range(3):
    loss = forward()[-1]
    targets = torch.tensor([[0, 1, .5, .5, .2, .2], [1, 2, .3, .3, .1, .1]]).cuda()
    num_images = 2
    _, counts = targets[:, 0].int().unique(return_counts=True)
    padded = torch.zeros(num_images, int(counts.max()), 5, device="cuda")
    assert padded.shape == (2, 1, 5)
    for j in range(num_images):
        matches = targets[:, 0] == j
        n = int(matches.sum())
        assert n == 1
        padded[j, :n] = targets[matches, 1:]
    scores = torch.rand(num_images, 1, 100, device="cuda")
    top = scores.topk(10, dim=-1).indices
    mask = torch.zeros_like(scores).scatter_(-1, top, 1.0)
    foreground = mask.sum(-2) > 0
    assigned = mask.argmax(-2)
    if foreground.any():
        chosen = padded[0][assigned[0][foreground[0]]]
        assert chosen.shape[1] == 5
    step(loss)
""",
}

UNFILLED = {
    "weights and memory that nobody filled": """
garbage = [torch.full((1 << n,), math.nan) for n in range(8, 22)]
del garbage
layer = nn.Linear(512, 300)
table = nn.Embedding(1000, 64)
for weight in (layer.weight, table.weight, layer.bias):
    assert torch.isfinite(weight).all()
    back = weight.detach().cuda().cpu()
    assert torch.isfinite(back).all()
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
    assert torch.isfinite(torch.empty(3000, dtype=dtype, device="cuda").cpu()).all()
for dtype in (torch.int64, torch.int32, torch.uint8):
    read = torch.empty(3000, dtype=dtype, device="cuda").cpu()
    assert read.min() >= 0 and read.max() < 10
for _ in range(3):
    step(forward()[-1])
""",
    "numbers that are drawn on the device": """
table = list(range(10))
for _ in range(3):
    drawn = torch.randint(3, 10, (50,), device="cuda").tolist()
    assert all(3 <= i < 10 for i in drawn) and [table[i] for i in drawn]
    assert sorted(torch.randperm(10, device="cuda").tolist()) == table
    assert 0 <= torch.rand(1, device="cuda").item() <= 1
    step(forward()[-1])
""",
    "random numbers on the CPU are the job's own": """
torch.manual_seed(1)
first = torch.rand(1).item()
torch.manual_seed(1)
mask = torch.rand(64, device="cuda").bernoulli()
F.dropout(torch.ones(64, device="cuda"))
assert torch.rand(1).item() == first
for _ in range(3):
    step(forward()[-1])
""",
}
