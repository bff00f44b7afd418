"""Tests of the instruments: a judge that can't find a fault, or finds one that is not there, proves nothing."""
