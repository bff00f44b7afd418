"""What development needs beside the product: the real server, installed and run on loopback."""
