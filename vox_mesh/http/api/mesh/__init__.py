"""Operations on the mesh as a whole."""
