"""`headrace trace`: what sampled unrolls went through, as tables and for OpenTelemetry."""
