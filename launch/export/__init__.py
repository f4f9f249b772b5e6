"""`headrace export`: a policy as ONNX, compared with torch."""
