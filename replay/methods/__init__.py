"""Replay methods that change the loss or the gradient."""

from replay.methods.agem import AGEM
from replay.methods.der import DER
from replay.methods.der_plus_plus import DERPlusPlus

__all__ = ["AGEM", "DER", "DERPlusPlus"]
