"""How far one server carries a fleet: measured inputs, a model of costs, and a simulated day."""
