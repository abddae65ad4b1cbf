"""Each kernel once, on the device and in the sizes of a run, against its torch form: does it build, does it agree?"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn import batch_norm, loss_head, put_off
from tickgraph.learn.gradients import Embedding, Gradients, Moments
from tickgraph.learn.networks import Actor, log_std_of
from tickgraph.learn.optimizer import NetworkStep
from tickgraph.learn.running import affine_backward, affine_relu
from tickgraph.learn.storage import Stacked, Storage
from tickgraph.learn.trunk import Weights, filled, small_weights, whiten

EMBEDDING = ("trunk.embed.weight", "trunk.input_norm.gain", "trunk.input_norm.offset")
"""Parameters whose gradients come from one product."""


def hold(mine: Tensor, wanted: Tensor, limit: float) -> None:
    """Raise where a tensor is further from another than `limit` of its norm."""
    off = (mine.double() - wanted.double()).norm() / wanted.double().norm()
    if not off <= limit:
        raise ArithmeticError(f"a result is off by {off.item():.1e} where {limit:.0e} is allowed")


def check_batch_norm(
    device: torch.device,
    shapes: Sequence[tuple[int, int, int]],
    inputs: Sequence[tuple[int, int, int]],
    dtype: torch.dtype,
) -> None:
    """Run batch norm with ReLU, forward, of all rows and of the half that is read, and backward, on (members, rows,
    width) for each of the shapes, and the whitening on (rows, width, width of the columns that each half of the rows
    has apart) for each of the inputs."""
    from tickgraph.learn.kernels import batch_norm as kernel

    limit = 1e-4 if dtype == torch.float32 else 1e-2  # over a few rows both forms round by 2e-5
    for members, rows, width in shapes:
        x, residual = (ramp((members, rows, width), device, k).to(dtype) for k in (1, 2))
        gain, offset = 1.0 + ramp((members, width), device, 3), ramp((members, width), device, 4)
        for extra, first in ((None, None), (residual, None), (residual, (members + 1) // 2)):
            made, wanted = (form.norm_relu(x, gain, offset, extra, first) for form in (kernel, batch_norm))
            for pair in zip(made, wanted, strict=True):
                hold(*pair, limit)
        given = (residual[:, : rows // 2].contiguous(), x, *wanted[1:], gain, offset)
        # About one ReLU in ten million lies so near to 0 that it rounds to the other side, and its gradient with it.
        for each in (given, (residual, *given[1:], x[:, : rows // 2])):  # of the last norm, and of one before it
            for pair in zip(kernel.norm_relu_backward(*each), batch_norm.norm_relu_backward(*each), strict=True):
                hold(*pair, max(limit, 1e-3))
    for k, (rows, width, behind) in enumerate(inputs):
        x = 1.0 + ramp((rows, width), device, k)
        ends = [ramp((rows // 2, behind), device, seed) for seed in (5, 6)] if behind else []
        for pair in zip(kernel.whiten(x, dtype, *ends), whiten(x, dtype, *ends), strict=True):
            hold(*pair, limit)


def check_loss_head(device: torch.device, rows: int, width: int, atoms: Tensor, dtype: torch.dtype) -> None:
    """Run the critics' tail on the trunk's result (4, rows, width)."""
    from tickgraph.learn.kernels import loss_head as kernel

    given = tail_inputs(device, rows, width, atoms, dtype)
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    made, wanted = (summed_tail(*given, head) for head in (kernel.categorical_head, loss_head.filled_head))
    for pair in zip(made, wanted, strict=True):
        hold(*pair, 1e-4 if exact else 1e-2)


def summed_tail(*given: Any) -> tuple[Tensor, ...]:
    """Return what `loss_head.critic_tail` does, with the gradients of gains and biases summed over rows."""
    *others, to_gain, to_bias = loss_head.critic_tail(*given)
    return *others, to_gain.sum(1), to_bias.sum(1)


def tail_inputs(
    device: torch.device, rows: int, width: int, atoms: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return made-up arguments of `loss_head.critic_tail`, some rows without a discount, some beyond the support.

    Which target's mean is less is never near: one that rounding turns would change a whole row. Their features lean
    to either side of a direction that the first atoms' weights lie against and the last atoms' along.
    """
    count, side = atoms.shape[0], ramp((width,), device, 1)
    h, heads = ramp((4, rows, width), device, 2), torch.zeros((4, filled(count), width), device=device)
    heads[:, :count] = ramp((4, count, width), device, 3) / width**0.5
    heads[2:, :count] += (3.0 / width) * side * (atoms / atoms[-1]).unsqueeze(-1)
    turn = 1.0 - 2.0 * (torch.arange(rows, device=device) % 2).unsqueeze(-1)
    h[2] += 2.0 * turn * side
    h[3] -= 2.0 * turn * side
    gains, biases = 1.0 + 0.3 * ramp((4, width), device, 4), torch.zeros((4, 1, filled(count)), device=device)
    biases[..., :count] = ramp((4, 1, count), device, 5)
    reward, log_prob = atoms[-1] * ramp((rows,), device, 6), 3.0 * ramp((rows,), device, 7)
    log_alpha = torch.full((), -2.3, device=device)
    discount = torch.where(ramp((rows,), device, 8) < -0.5, 0.0, 1.0 - 0.1 * ramp((rows,), device, 9).abs())
    return h.to(dtype), gains, heads.to(dtype), biases, reward, discount, log_prob, log_alpha, atoms


def check_affine(
    device: torch.device, critics: tuple[int, int, int], actor: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Run both layers of a block on running statistics, (members, rows, width): forward, and the critics' back."""
    from tickgraph.learn.kernels import affine_product as kernel

    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    for shape in (critics, actor):
        forward, back = affine_inputs(device, shape, dtype)
        pairs = [
            pair for given in forward for pair in zip(kernel.affine_relu(*given), affine_relu(*given), strict=True)
        ]
        for given in back if shape == critics else ():
            found = list(zip(kernel.affine_backward(*given), affine_backward(*given), strict=True))
            pairs += found if given[-1] is not None else found[1:]  # the first is made with a residual alone
        for pair in pairs:
            hold(*pair, 1e-4 if exact else 1e-2)


def affine_inputs(
    device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return made-up arguments of `running.affine_relu` and `running.affine_backward` in both layers of a block.

    Args:
        device: where they are.
        shape: (members, rows, width) of the block's input.
        dtype: of the products.
    """
    members, rows, width = shape
    x, grad = (ramp(shape, device, k).to(dtype) for k in (1, 2))
    inner, to_inner = (ramp((members, rows, 4 * width), device, k).to(dtype) for k in (3, 4))
    up, down = ramp((members, 4 * width, width), device, 5), ramp((members, width, 4 * width), device, 6)
    up, down = (up / width**0.5).to(dtype), (0.5 * down / width**0.5).to(dtype)
    scale, shift = 1.0 + 0.5 * ramp((members, 1, 4 * width), device, 7), ramp((members, 1, 4 * width), device, 8)
    own_scale, own_shift = 1.0 + 0.5 * ramp((members, 1, width), device, 9), ramp((members, 1, width), device, 10)
    forward = [(x, up, scale, shift, None), (inner, down, own_scale, own_shift, x)]
    gate, own_gate = (torch.relu(inner), scale), (torch.relu(x), own_scale)
    back = [(grad, down, gate, None), (to_inner, up, own_gate, grad), (to_inner, up, None, grad)]
    return forward, back


def check_small_weights(networks: Sequence[tuple[Storage, int, int]], dtype: torch.dtype) -> None:
    """Make what is read of small parameters, of networks given as (layout, flat tensors, blocks)."""
    for storage, parts, blocks in networks:
        made, wanted = small_weights_by_both(storage, parts, blocks, dtype)
        pairs = [*((mine, wanted[name]) for name, mine in made.items()), copies_by_both(storage, parts, dtype)]
        for pair in pairs:
            hold(*pair, 1e-5 if dtype == torch.float32 else 1e-2)


def copies_by_both(storage: Storage, parts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the copies of a network's weights, and of its target's where there are two parts, by the kernel and by
    torch, of parameters as they are."""
    from tickgraph.learn.kernels.copies import refresh

    found, device = [], storage.parameters.device
    target = ramp(storage.parameters.shape, device, 1) if parts == 2 else None
    for renew in (refresh, Stacked.refresh):
        found.append(Stacked(storage, target, dtype, Arena(device), "copies"))
        found[-1].flat.fill_(torch.nan)
        renew(found[-1])
    return found[0].flat, found[1].flat


def small_weights_by_both(
    storage: Storage, parts: int, blocks: int, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return {name: what passes read of a network's weights} by the kernel and by torch, of made-up flat tensors."""
    from tickgraph.learn.kernels.stack_weights import StackWeights

    flats = [ramp(storage.parameters.shape, storage.parameters.device, k) for k in range(1, parts + 1)]
    found = []
    for form in (StackWeights(storage), partial(small_weights, storage, True)):
        weights = Weights(storage, flats, blocks, dtype, form)
        named = {name: getattr(weights, name) for name in ("folded", "head", "head_bias", "gain")} | weights.weights
        for path, (gain, offset) in weights.norms.items():
            named |= {f"{path}.gain": gain, f"{path}.offset": offset}
        members = weights.folded.shape[0] // parts
        for name in ("embed", "input_gain", "input_offset"):
            named[name] = getattr(weights, name)[:members]
        found.append(named)
    return found[0], found[1]


def check_put_off(networks: Sequence[tuple[Storage, int]], dtype: torch.dtype) -> None:
    """Finish the gradients of networks given as (layout, rows of a batch that has a gradient)."""
    for storage, rows in networks:
        made, wanted = put_off_by_both(storage, rows, dtype)
        # Matrix units may cut sums off rather than round, and the kernels split a sum where torch may not: over 8,192
        # rows of one sign that is 1e-5. A row that is left out is at least 1e-4 there.
        multiplied = {*storage.linear, *EMBEDDING} if dtype == torch.bfloat16 else set[str]()
        for name, mine in made.items():
            hold(mine, wanted[name], 1e-4 if name in multiplied else 1e-5)


def put_off_by_both(storage: Storage, rows: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return {name: gradient, or what goes with them} by the kernels and by torch, of a made-up backward pass.

    As in an update, the values behind the heads' biases are a view that does not lie in one piece, with columns that
    fill up.
    """
    from tickgraph.learn.kernels import finish as kernel

    found = []
    for operation in (kernel.finish, put_off.finish):
        grads = Gradients(storage, operation)
        figures, moments = fill_in(grads, rows, dtype)
        grad, means, statistics = grads.finish(figures, moments)
        found.append(storage.named(grad) | {"figures": means, "means": statistics[0], "variances": statistics[1]})
    return found[0], found[1]


def fill_in(grads: Gradients, rows: int, dtype: torch.dtype) -> tuple[Tensor, Moments]:
    """Set all gradients of a network, the same in each call, and return figures and moments to finish them with.

    There are all kinds: products alone, together and filled up, sums, an embedding, and tensors. Values that are summed
    lean to one side, so that no sum is small beside what rounds in it.
    """
    device, spans = grads.storage.parameters.device, {span.name: span for span in grads.storage.spans}
    *ensemble, width, inputs = spans[EMBEDDING[0]].shape
    members = ensemble[0] if ensemble else 1
    factors = [ramp((members, rows, columns), device, columns).to(dtype) for columns in (width, filled(inputs + 1))]
    own = [ramp((members, *shape), device, len(shape)) for shape in ((width, inputs), (inputs,), (inputs,))]
    grads.embedding(EMBEDDING, Embedding(*factors, *own))
    means, scales = [ramp((inputs,), device, 1)] * members, list[Tensor]()
    variances = [1.0 + ramp((inputs,), device, 2)] * members
    heads = tuple(name for name in grads.storage.linear if not name.startswith("trunk."))
    outputs = filled(sum(spans[name].shape[-2] for name in heads))
    grads.product(heads, *(ramp((members, rows, columns), device, columns).to(dtype) for columns in (outputs, width)))
    for seed, span in enumerate(span for name, span in spans.items() if name not in (*EMBEDDING, *heads)):
        size = span.size // members
        if span.name in grads.storage.linear:
            widths = span.shape[-2:]
            sides = [ramp((members, rows, columns), device, seed).to(dtype) for columns in widths]
            grads.product(span.name, *sides)
        elif ".blocks." in span.name:
            grads[span.name] = ramp(span.shape, device, seed)
            if span.name.endswith("gain"):
                means.append(ramp((members, size), device, seed + 1))
                scales.append(1.5 + ramp((members, size), device, seed + 2))
        elif span.name.startswith("trunk."):
            grads.total(span.name, 1.0 + ramp((members, rows, size), device, seed))
        else:
            values = 1.0 + ramp((rows, members, filled(size)), device, seed)
            grads.total(span.name, values.transpose(0, 1))
    return 1.0 + ramp((3, rows), device, 3), Moments(means, variances, scales, 2 * rows)


def check_row_steps(*steps: NetworkStep) -> None:
    """Run `check_row_step` on the steps of several networks."""
    for step in steps:
        check_row_step(step)


def check_row_step(step: NetworkStep) -> None:
    """Take two steps of a copy of a network: one that counts, one that must not."""
    from tickgraph.learn.row_step import RowStep

    storage, made = step.storage, []
    grad, statistics = ramp(storage.parameters.shape, storage.parameters.device, 1), None
    if storage.statistics.device.type != "meta":
        statistics = ramp(storage.statistics.shape, storage.statistics.device, 2).abs()
    for rowwise in (False, True):
        arena = Arena(grad.device)
        running = storage.statistics if statistics is None else storage.statistics.clone()
        copied: Storage = replace(storage, parameters=storage.parameters.clone(), statistics=running)
        target = None if step.target is None else step.target.clone()
        options = (step.momentum, target, step.tau, step.adam.betas, step.adam.decay, step.max_norm)
        taken = NetworkStep(copied, arena, "adam", *options)
        made.append(RowStep(taken, arena, "adam") if rowwise else taken)
    for loss, counts in ((1.0, True), (torch.nan, False)):
        for each in made:
            factors = each.adam.factors(torch.full((), 1e-3, device=grad.device))
            ok = each.apply(torch.full((), loss, device=grad.device), grad, statistics, factors)
            if bool(ok) != counts:
                raise ArithmeticError(f"a step with loss {loss} was {'taken' if ok else 'refused'}")
    plain, rowwise_step = made
    pairs = [(one.storage.parameters, one.adam.moment1, one.adam.moment2) for one in (rowwise_step, plain)]
    if statistics is not None:
        pairs = [(*pair, one.storage.statistics) for pair, one in zip(pairs, (rowwise_step, plain), strict=True)]
    if plain.target is not None:
        pairs = [(*pair, one.target) for pair, one in zip(pairs, (rowwise_step, plain), strict=True)]
    for mine, wanted in zip(*pairs, strict=True):
        hold(mine, wanted, 1e-5)


def check_policy(policy: Actor, form: Callable[[Tensor], tuple[Tensor, Tensor]], rows: int, inputs: int) -> None:
    """Let a policy act on made-up observations (rows, inputs) as it is and by `form`, whose products round."""
    obs = 3.0 * ramp((rows, inputs), policy.mean_bias.device, 1)
    mean, raw = form(obs)
    for mine, wanted in zip((mean, log_std_of(raw)), policy(obs), strict=True):
        hold(mine, wanted, 1e-2)


def ramp(shape: tuple[int, ...], device: torch.device, seed: int) -> Tensor:
    """Return numbers that look random, in [-1, 1], the same everywhere."""
    count = torch.Size(shape).numel()
    place = torch.arange(count, device=device, dtype=torch.float64)
    return torch.sin(place * (12.9898 + seed) + seed).to(torch.float32).view(shape)
