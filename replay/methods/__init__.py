"""Replay methods that change the loss or the gradient."""

from replay.methods.agem import AGEM as AGEM
from replay.methods.der import DER as DER, DERPlusPlus as DERPlusPlus
from replay.methods.reference_kl import ReferenceKL as ReferenceKL
