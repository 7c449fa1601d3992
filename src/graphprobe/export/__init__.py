"""What lies on disk, in the forms of other tools: traces, ONNX, Model Explorer, TensorBoard, Parquet."""
