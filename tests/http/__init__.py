"""The HTTP service and the relay, as others see them."""
