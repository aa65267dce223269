"""Shares by data set size, flattened by a temperature."""

from mixer.policies.contract import Mixture, Unit
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_temperature


class Temperature(StaticPolicy):
    """Samples by size to the power 1/τ: `w_k ∝ n_k^(1/τ)`.

    τ = 1 is proportional and a large τ is nearly uniform. Multilingual BERT used τ = 1.43 (Devlin et al. 2019), XLM 2
    (Conneau and Lample 2019, arXiv:1901.07291), XLM-R and mT5 3.33 (Xue et al. 2021, arXiv:2010.11934, sec. 3.2, which
    gives all but XLM's as `α = 1/τ`).

    Args:
        temperature: τ, above 0.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If the temperature is not above 0; at the start of the run if the size of a stream is unknown, or
            that of a replay buffer, which changes.
    """

    def __init__(self, temperature: float = 3.33, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        check_temperature("temperature", temperature, "1 is proportional, a large one nearly uniform")
        self.temperature = temperature

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Computes `n_k^(1/τ)`; see `StaticPolicy.mixture_weights`."""
        memories = [mixture.names[k] for k in mixture.memories]
        unknown = [name for name, size in zip(mixture.names, mixture.num_samples, strict=True) if size == 0]
        if (memories or unknown) and len(mixture.names) == 1:
            return mixture.weights
        if memories:
            share = f"ReplayRatio(0.1, policy={type(self).__name__}())"
            raise wrong_value(
                "mixing", f"={type(self).__name__} needs stream sizes; {memories} are replay buffers. Use {share}."
            )
        if unknown:
            raise wrong_value(
                "mixing",
                f"={type(self).__name__} needs stream sizes; {unknown} are iterable. Give weights, or use Uniform.",
            )
        sizes = (mixture.num_samples / mixture.num_samples.max()) ** (1.0 / self.temperature)
        weights: FloatArray = sizes / sizes.sum()
        return weights
