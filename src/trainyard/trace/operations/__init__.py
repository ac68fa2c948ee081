"""The operation tree of measured traces: modules, ops and kernels with the ns that the ledger books to them."""
