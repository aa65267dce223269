"""What a data set is, for signatures."""

from typing import Any

DataSet = Any
"""Rows by number (`__len__` and `__getitem__`): a `datasets.Dataset`, a torch `Dataset`, a list.

Where iterable ones are taken, also rows in order (`__iter__`): a `datasets.IterableDataset`, a torch `IterableDataset`.
They share no base class, so a type checker takes anything.
"""
