"""Forms of requests to upstreams: chat completions, Responses, Messages."""
