"""A small llama in plain PyTorch with the parameter names of Hugging Face, and its optimiser.

Used by train_pair.py only. Rotary embedding is the half-split form of Hugging Face, so a state dict
can be written to model.safetensors as it is.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class ModelShape:
    n_vocab: int
    n_hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_head_dim: int
    n_ffn: int
    n_positions: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


def drop_channels(x, rate):
    """Dropout with one mask for all positions of a row: nearly free on a CPU."""
    mask = torch.rand(x.shape[0], 1, x.shape[2]) >= rate
    return x * (mask.to(x.dtype) / (1.0 - rate))


class RmsNorm(nn.Module):
    def __init__(self, n_hidden, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_hidden))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.n_hidden, shape.n_heads * shape.n_head_dim, bias=False)
        self.k_proj = nn.Linear(shape.n_hidden, shape.n_kv_heads * shape.n_head_dim, bias=False)
        self.v_proj = nn.Linear(shape.n_hidden, shape.n_kv_heads * shape.n_head_dim, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * shape.n_head_dim, shape.n_hidden, bias=False)

    def forward(self, x, cos, sin, cache):
        shape = self.shape
        batch, length, _ = x.shape

        def heads(projection, n_heads):
            return projection(x).view(batch, length, n_heads, shape.n_head_dim).transpose(1, 2)

        query = rotate(heads(self.q_proj, shape.n_heads), cos, sin)
        key = rotate(heads(self.k_proj, shape.n_kv_heads), cos, sin)
        value = heads(self.v_proj, shape.n_kv_heads)
        if cache is not None:
            if cache:
                key = torch.cat((cache[0], key), dim=2)
                value = torch.cat((cache[1], value), dim=2)
            cache[:] = [key, value]
        repeat = shape.n_heads // shape.n_kv_heads
        key = key.repeat_interleave(repeat, dim=1)
        value = value.repeat_interleave(repeat, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.n_hidden, shape.n_ffn, bias=False)
        self.up_proj = nn.Linear(shape.n_hidden, shape.n_ffn, bias=False)
        self.down_proj = nn.Linear(shape.n_ffn, shape.n_hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, dropout):
        super().__init__()
        self.dropout = dropout
        self.input_layernorm = RmsNorm(shape.n_hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.n_hidden, shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin, cache):
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin, cache))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))

    def drop(self, x):
        return drop_channels(x, self.dropout) if self.training and self.dropout > 0 else x


class Body(nn.Module):
    def __init__(self, shape, dropout):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.n_vocab, shape.n_hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.n_layers))
        self.norm = RmsNorm(shape.n_hidden, shape.norm_eps)


class Llama(nn.Module):
    """Decoder with tied embeddings: ids [batch, length] to logits [batch, length, vocab]."""

    def __init__(self, shape, dropout=0.0):
        super().__init__()
        self.shape = shape
        self.model = Body(shape, dropout)
        half = shape.n_head_dim // 2
        frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(shape.n_positions, dtype=torch.float64), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 1.0 / math.sqrt(2 * shape.n_layers) if is_output else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def new_cache(self):
        return [[] for _ in self.model.layers]

    def forward(self, ids, cache=None):
        past = cache[0][0].shape[2] if cache and cache[0] else 0
        length = ids.shape[1]
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.bfloat16)
        cos = self.cos[past : past + length].to(x.dtype)
        sin = self.sin[past : past + length].to(x.dtype)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if cache is None else cache[index])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def orthogonalise(matrix, steps=5):
    """Newton-Schulz iteration of Muon (Jordan et al., 2024): the nearest half-orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (matrix / (matrix.norm() + 1e-7)).to(torch.bfloat16)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.T).to(matrix.dtype)


class MuonAdam:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""

    def __init__(self, model, muon_lr, adam_lr, weight_decay):
        inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
        outer = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
        self.matrices = inner
        self.momentum = [torch.zeros_like(p) for p in inner]
        self.muon_lr, self.adam_lr, self.weight_decay = muon_lr, adam_lr, weight_decay
        self.adam = torch.optim.AdamW(outer, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self.parameters = inner + outer

    @torch.no_grad()
    def step(self, lr_scale):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * lr_scale
        self.adam.step()
        lr = self.muon_lr * lr_scale
        for parameter, momentum in zip(self.matrices, self.momentum):
            momentum.lerp_(parameter.grad, 0.05)
            update = orthogonalise(parameter.grad.lerp(momentum, 0.95))
            size = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - lr * self.weight_decay).add_(update, alpha=-lr * size)
        for parameter in self.parameters:
            parameter.grad = None


class Average:
    """Exponential moving average of the weights: what is exported, at any time of the schedule."""

    def __init__(self, model, decay):
        self.decay = decay
        self.count = 0
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        self.count += 1
        rate = max(1.0 - self.decay, 1.0 / (self.count + 1))
        for name, parameter in model.named_parameters():
            self.values[name].lerp_(parameter, rate)
