"""Progress bars, in terminals and notebooks."""
