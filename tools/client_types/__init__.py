"""Types of the Python and the TypeScript client, generated from the OpenAPI document."""
