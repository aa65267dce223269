"""Methods of replay that are more than samples drawn again: terms of the loss, and rules for the gradient."""

from replay.methods.agem import AGEM
from replay.methods.der import DER
from replay.methods.der_plus_plus import DERPlusPlus

__all__ = ["AGEM", "DER", "DERPlusPlus"]
