"""Tests of the probe's reports."""
