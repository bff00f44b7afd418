"""Operations on the rhythm, and on requests for help."""
