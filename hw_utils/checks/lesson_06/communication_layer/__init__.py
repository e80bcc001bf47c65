"""Checks of 6.1: a communication layer on threads, under many orders of them."""
