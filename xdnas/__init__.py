"""Neural architecture search over operations: XD-operations started at the convolutions of a backbone."""
