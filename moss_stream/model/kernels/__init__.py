"""What is compiled for the machine at hand, because torch has nothing as fast for it."""
