"""Figures of how well scores rank, on whole batches."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(scores: Tensor, label: Tensor) -> Tensor:
    """f32 [] (f64 of scores in f64): the share of pairs of one example labelled 1 and one labelled
    0 in which the first has the greater score, equal scores counted half (Mann and Whitney, 1947).
    NaN where all labels are alike."""
    scores, chosen = scores.detach().reshape(-1), label.reshape(-1) != 0
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, from 1.
    ranks = counts.cumsum(0).double() - (counts.double() - 1.0) / 2.0
    ones = chosen.sum().double()
    above = ranks[place][chosen].sum() - ones * (ones + 1.0) / 2.0
    area = above / (ones * (len(scores) - ones))
    return area if scores.dtype == torch.float64 else area.float()
