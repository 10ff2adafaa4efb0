"""The contract of a Django task backend, contract by contract. See README.md."""
