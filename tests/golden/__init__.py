"""What each door answers on one filled store, recorded, so that a rebuilding of the doors can be compared."""
