"""The definition of right, in plain torch: every feature of the contract, any float dtype, no kernel, no hurry."""
