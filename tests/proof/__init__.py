"""Tests of the instruments: a judge that finds no fault, or finds one that is not there, proves nothing."""
