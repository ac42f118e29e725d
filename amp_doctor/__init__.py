"""AMP Doctor: finds what is wrong with the way PyTorch mixed precision is used.

Imports go down the floors only: cli; report; lint and probe (which never meet); diagnosis;
catalog and config; finding, errors and numerics. Importing the package imports nothing heavy.
"""

__version__ = "0.1.0"
