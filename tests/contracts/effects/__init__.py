"""The contract that every ready-made effect keeps."""
