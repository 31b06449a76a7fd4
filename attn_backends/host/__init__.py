"""The host side of a call: tensors -> Request, the chosen kernel's `Call`, gradients, the ledger. Imports torch."""
