"""Small transformers with random γ, β and LayerScales, in float64."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, VOCABULARY = 24, 3, 40


def randomized(model: nn.Module) -> Any:
    """Return a model in float64 and eval mode, in which no parameter is zero, one, or of zero mean."""
    generator = torch.Generator().manual_seed(0)
    model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_gamma = parameter.dim() == 1 and not name.endswith("bias")
            parameter.copy_(1 + 0.3 * noise if is_gamma else 0.1 + 0.3 * noise)
    return model


class LayerScale(nn.Module):
    """γ ⊙ x."""

    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.gamma


class Attention(nn.Module):
    """Multi-head self-attention with packed q, k, v, as in timm."""

    def __init__(self, width, bias=True, causal=False, qk_norm=False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.causal = causal
        norm = (lambda: nn.LayerNorm(width // HEADS)) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width, bias=True, causal=False, layer_scale=False, qk_norm=False, norm=nn.LayerNorm):
        super().__init__()
        scale = LayerScale if layer_scale else nn.Identity
        self.norm1, self.attn, self.ls1 = norm(width), Attention(width, bias, causal, qk_norm), scale(width)
        self.norm2, self.ls2 = norm(width), scale(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width, bias=bias), nn.Linear(2 * width, width, bias=bias)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        x = x + self.drop(self.ls1(self.attn(self.norm1(x))))
        return x + self.ls2(self.drop(self.fc2(functional.gelu(self.fc1(self.norm2(x))))))


class ViT(nn.Module):
    """Patches, class token, positions, pre-norm blocks, norm, head; images (n, 3, 8, 8)."""

    def __init__(self, bias=True, pool="token", **block):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, 4, bias=bias)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, bias, **block) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10, bias=bias)
        self.pool = pool

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0] if self.pool == "token" else x[:, 1:].mean(1))


class GPT(nn.Module):
    """Token and position embeddings, causal pre-norm blocks, norm, head without bias; tokens (n, t)."""

    def __init__(self, tied=False, bias=True, **block):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.h = nn.ModuleList(Block(WIDTH, bias, causal=True, **block) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Encoder(nn.Module):
    """nn.TransformerEncoder with embeddings and a classifier; tokens (n, t)."""

    def __init__(self, norm_first=True, bias=True, batch_first=True, heads=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, heads, 2 * WIDTH, batch_first=batch_first, norm_first=norm_first, bias=bias, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH, bias=bias), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5, bias=bias)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


def images(n=2):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(n=2, length=7):
    return torch.randint(VOCABULARY, (n, length), generator=torch.Generator().manual_seed(1))
