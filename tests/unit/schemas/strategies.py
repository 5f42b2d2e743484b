"""Hypothesis strategies for random names, column types and shapes (the columns of an entity)."""

from hypothesis import strategies as st

from changelog.schemas.types import Array, Decimal, Map, Primitive, Struct

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6) | st.text(
    "_x0123ABCDEF /~.", min_size=1, max_size=10
)

decimals = st.integers(1, 40).flatmap(
    lambda precision: st.builds(Decimal, precision=st.just(precision), scale=st.integers(0, precision))
)

types = st.recursive(
    st.sampled_from(Primitive) | decimals,
    lambda inner: (
        st.builds(Array, element=inner)
        | st.builds(Map, value=inner)
        | st.builds(
            Struct,
            fields=st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda field: field[0]).map(
                tuple
            ),
        )
    ),
    max_leaves=5,
)

shapes = st.builds(
    Struct,
    fields=st.lists(st.tuples(names, types), min_size=1, max_size=5, unique_by=lambda field: field[0]).map(tuple),
)
