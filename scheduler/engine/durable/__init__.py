"""step, sleep, await, spawn and map as generators, and the two drivers that run them."""
