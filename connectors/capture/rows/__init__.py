"""Turns decoded rows into changelog rows. One path takes single rows and defines the result; a fast one takes many."""
