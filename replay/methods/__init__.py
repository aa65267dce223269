"""Replay methods that change the loss or the gradient."""

from replay.methods.agem import AGEM
from replay.methods.der import DER, DERPlusPlus

__all__ = ["AGEM", "DER", "DERPlusPlus"]
