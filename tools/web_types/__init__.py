"""Check the types of the web console's modules with TypeScript, in development only."""
